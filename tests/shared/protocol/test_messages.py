"""Payloads that have rules of their own (PROTOCOL §4)."""

from typing import Any

import orjson
import pytest
from msgspec import to_builtins

from shared.protocol import limits
from shared.protocol.engine_state import EngineState
from shared.protocol.errors import FrameMalformed
from shared.protocol.messages import (
    AgentState,
    AgentStatus,
    DeploymentState,
    DeploymentStatus,
    Refusal,
    RequestHead,
    ResponseHead,
    Trailers,
    Usage,
    UsageMode,
)


@pytest.mark.parametrize(
    "payload",
    [
        RequestHead(
            "d", "POST", "/v1/x", (("a", "b"),), "m", "r", True, UsageMode.KEEP, "batch", 2.5, 9, "t"
        ),
        RequestHead("", "GET", "/", (), "", ""),
        RequestHead("", "GET", "/", (), "", "", where={"region": ("eu",)}, via=("0" * 16,)),
        RequestHead("", "GET", "/", (), "", "", upgrade=True),
        RequestHead("", "GET", "/", (), "", "", gather_s=0.1),
        Trailers(Usage(1, 2, 3), 0.1, 0.2, 0.3, 0.4),
        Trailers(),
        Trailers(ran_by="lab/gpu-1", device="NVIDIA L4"),
    ],
)
def test_payloads_written_member_by_member_say_all_of_them(payload: RequestHead | Trailers) -> None:
    said = orjson.dumps(to_builtins(payload))
    later = b',"gpu_s":null', b',"expected":null', b',"ran_by":"","device":""', b',"where":null,"via":[]'
    # Left out, as by versions that do not know them.
    for unsaid in (*later, b',"upgrade":false', b',"gather_s":null'):
        said = said.replace(unsaid, b"")
    assert payload.to_payload() == said
    assert type(payload).from_payload(payload.to_payload()) == payload


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


ENGINES = (
    EngineState("127.0.0.1-8000", DeploymentStatus.FAILED, "connection refused"),
    EngineState("torch", DeploymentStatus.LOADING, "loading weights", "trunkline", 0.25, 6.0, 24.5),
)
NEW_MEMBERS = {"engines", "reason"}


def test_engines_are_read_as_they_were_written() -> None:
    state = AgentState(AgentStatus.FAILED, engines=ENGINES, reason="no engine serves")
    assert AgentState.from_payload(state.to_payload()) == state


@pytest.mark.parametrize("labels", [{}, {"region": "eu"}])
def test_a_gateway_that_knows_nothing_of_engines_reads_what_it_always_did(labels: dict[str, str]) -> None:
    """It ignores members it does not know, and the others are byte for byte as they were."""
    old = AgentState(AgentStatus.READY, (DeploymentState("torch/m", "m"),), labels=labels)
    new = AgentState(AgentStatus.READY, (DeploymentState("torch/m", "m"),), (), None, labels, ENGINES)
    assert not NEW_MEMBERS & orjson.loads(old.to_payload()).keys()
    known = {key: value for key, value in orjson.loads(new.to_payload()).items() if key not in NEW_MEMBERS}
    assert {"labels": {}} | orjson.loads(old.to_payload()) == known


def test_an_agent_that_says_nothing_of_engines_is_read_as_ever() -> None:
    state = AgentState.from_payload(b'{"status": "READY", "deployments": []}')
    assert (state.engines, state.reason) == ((), "")


def test_an_engine_with_a_status_of_a_later_version_is_left_out() -> None:
    said = [{"name": "a", "status": "asleep"}, {"name": "b", "status": "loaded", "newer": 1}]
    read = AgentState.from_payload(orjson.dumps({"status": "READY", "engines": said}))
    assert read.engines == (EngineState("b", DeploymentStatus.LOADED),)


@pytest.mark.parametrize(
    "engines",
    [
        "torch",
        ["torch"],
        [{"status": "loaded"}],
        [{"name": "a" * 300, "status": "loaded"}],
        [{"name": "a", "status": "loading", "load_progress": 2}],
        [{"name": "a", "status": "loading", "loading_s": -1}],
        [{"name": "a", "status": "loaded"}] * 65,
    ],
)
def test_engines_that_cannot_be_are_malformed(engines: Any) -> None:
    with pytest.raises(FrameMalformed):
        AgentState.from_payload(orjson.dumps({"status": "READY", "engines": engines}))


@pytest.mark.parametrize(
    ("progress", "loading_s", "load_s", "words"),
    [
        (None, None, None, ""),
        (None, 4.4, None, "4 s"),
        (None, 4.4, 24.5, "4 s of about 24 s"),
        (0.456, 12.0, 27.0, "46 %, 12 s of about 27 s"),
        (1.0, 0.2, 0.1, "100 %, 0 s of about 1 s"),
    ],
)
def test_how_far_loading_is_in_words(
    progress: float | None, loading_s: float | None, load_s: float | None, words: str
) -> None:
    state = EngineState("e", DeploymentStatus.LOADING, "", "", progress, loading_s, load_s)
    assert state.loading_words == words


def test_a_head_without_a_refusal_has_the_bytes_of_before() -> None:
    """Vectors have the bytes; peers of before know no such member."""
    assert ResponseHead(200, (("a", "b"),)).to_payload() == b'{"status":200,"headers":[["a","b"]]}'


@pytest.mark.parametrize("refusal", [None, *Refusal])
def test_a_refusal_is_read_as_it_was_written(refusal: Refusal | None) -> None:
    head = ResponseHead(429, (), refusal=refusal)
    assert ResponseHead.from_payload(head.to_payload()) == head


@pytest.mark.parametrize("word", [b'"later"', b"null", b"3", b'["busy"]', b"{}"])
def test_a_refusal_of_another_kind_is_none_that_is_known(word: bytes) -> None:
    payload = b'{"status":503,"headers":[],"refusal":%b}' % word
    assert ResponseHead.from_payload(payload).refusal is None


@pytest.mark.parametrize("kind", [RequestHead, ResponseHead, Trailers, AgentState])
@pytest.mark.parametrize("payload", [b"[]", b"null", b'"text"', b"1", b"[1, 2]", b"", b"\xff", b"{"])
def test_a_payload_that_is_no_object_is_refused(kind: Any, payload: bytes) -> None:
    with pytest.raises(FrameMalformed, match="JSON"):
        kind.from_payload(payload)
