"""What the process that makes forecasts is given."""

import math

from pydantic import TypeAdapter

from gateway.scaling.learning_task import LearningTask, task_line
from gateway.scheduling.scaling.data import ScalingRule
from tests.gateway.scheduling.scaling.facts import L4


def test_a_task_is_the_same_on_the_other_side_and_what_is_not_known_is_null() -> None:
    task = LearningTask(600.0, [1.0, math.nan], L4, ScalingRule(latency_s=None), 0.9, 0.15, 14, acts=True)
    line = task_line(task)
    assert line.endswith(b"\n")
    found = TypeAdapter(LearningTask).validate_json(line)
    assert found.values == [1.0, None]
    assert (found.facts, found.rule, found.acts) == (L4, ScalingRule(), True)
