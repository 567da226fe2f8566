"""What the process that makes forecasts is given."""

import math

from pydantic import TypeAdapter

from gateway.scaling.learning_task import LearningTask, task_line
from gateway.scheduling.scaling.data import ScalingRule
from tests.gateway.scheduling.scaling.facts import L4


def test_a_task_is_the_same_on_the_other_side_and_what_is_not_known_is_null() -> None:
    about = (L4, ScalingRule(latency_s=None), 0.9, 0.15, 14)
    task = LearningTask(600.0, [1.0, math.nan], *about, acts=True, bursts=bytes(range(60)))
    line = task_line(task)
    assert line.endswith(b"\n")
    found = TypeAdapter(LearningTask).validate_json(line)
    assert found.values == [1.0, None]
    assert (found.facts, found.rule, found.acts) == (L4, ScalingRule(), True)
    assert found.bursts == bytes(range(60))


def test_a_task_without_bursts_has_none() -> None:
    line = task_line(LearningTask(600.0, [1.0], L4, ScalingRule(), 0.9, 0.15, 14, acts=False))
    assert TypeAdapter(LearningTask).validate_json(line).bursts == b""
    assert b'"bursts":""' in line
