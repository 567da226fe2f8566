"""Batches as a STATE says them: what is new, and what of a peer's is ignored."""

from typing import Any

import orjson
import pytest

from shared.protocol.batch_sizes import BatchSizes, usable_batch_sizes
from shared.protocol.deployment_state import DeploymentState
from shared.protocol.limits import BATCH_SIZES
from shared.protocol.messages import AgentState, AgentStatus

PLACES = len(BATCH_SIZES) + 1


def sizes(first: int, second: int, items: int) -> BatchSizes:
    return BatchSizes((first, second, *(0,) * (PLACES - 2)), items)


def test_what_is_new_is_the_difference() -> None:
    assert sizes(5, 3, 11).since(sizes(2, 3, 8)) == sizes(3, 0, 3)
    assert sizes(5, 3, 11).since(sizes(5, 3, 11)) == BatchSizes()


@pytest.mark.parametrize("before", [sizes(6, 0, 6), sizes(0, 0, 12)])
def test_of_an_engine_that_began_anew_all_is_new(before: BatchSizes) -> None:
    assert sizes(5, 3, 11).since(before) == sizes(5, 3, 11)


@pytest.mark.parametrize(
    "value",
    [None, 3, [], {"counts": [1, 2], "items": 3}, {"counts": [-1] * PLACES}, {"counts": [0.5] * PLACES}],
)
def test_what_cannot_be_read_is_not_said(value: Any) -> None:
    assert usable_batch_sizes(value) is None


def test_a_state_has_them_and_one_without_them_is_as_it_was_before_there_were_any() -> None:
    said = AgentState(AgentStatus.READY, (DeploymentState("d", "m", batches=sizes(1, 2, 5)),))
    (read,) = AgentState.from_payload(said.to_payload()).deployments
    assert read.batches == sizes(1, 2, 5)
    silent = AgentState(AgentStatus.READY, (DeploymentState("d", "m"),)).to_payload()
    assert b"batches" not in silent
    assert set(orjson.loads(silent)["deployments"][0]) < set(DeploymentState.__dataclass_fields__)
    assert AgentState.from_payload(silent).deployments[0].batches is None
