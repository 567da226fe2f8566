"""Payloads that have rules of their own (PROTOCOL §4)."""

from typing import Any

import orjson
import pytest

from shared import limits
from shared.errors import FrameMalformed
from shared.messages import AgentState, AgentStatus, DeploymentState


def test_a_state_without_labels_says_nothing_of_labels() -> None:
    """As before there were any; vectors have the bytes."""
    state = AgentState(AgentStatus.READY, (DeploymentState("d", "m"),))
    assert b"labels" not in state.to_payload()
    assert AgentState.from_payload(state.to_payload()) == state


def test_labels_are_read_as_they_were_written() -> None:
    state = AgentState(AgentStatus.READY, labels={"region": "eu", "rack": ""})
    assert AgentState.from_payload(state.to_payload()) == state


def test_labels_that_can_be_none_are_left_out() -> None:
    said: dict[str, Any] = {"ok": "yes", "n" * 64: "x", "x": "v" * 64, "line": "a\nb", "number": 1}
    read = AgentState.from_payload(orjson.dumps({"status": "READY", "deployments": [], "labels": said}))
    assert read.labels == {"ok": "yes"}
    many = {f"l{number}": "" for number in range(limits.LABELS + 5)}
    assert len(AgentState.from_payload(AgentState(AgentStatus.READY, labels=many).to_payload()).labels) == (
        limits.LABELS
    )


def test_labels_that_are_no_object_are_malformed() -> None:
    with pytest.raises(FrameMalformed):
        AgentState.from_payload(b'{"status": "READY", "deployments": [], "labels": ["a"]}')
