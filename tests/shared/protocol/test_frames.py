"""Frames against the vectors of PROTOCOL §11 and the table of §3.2."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shared
from shared.protocol import limits
from shared.protocol.errors import ErrorCode, FrameMalformed, ProtocolError
from shared.protocol.frames import (
    RULES,
    FrameType,
    decode_message,
    decode_offset,
    decode_reason,
    encode,
    encode_offset,
    encode_reason,
)
from shared.protocol.messages import (
    AgentState,
    Command,
    CommandResult,
    CommandVerb,
    Drain,
    RequestHead,
    ResponseHead,
    Trailers,
    decode_levels,
)
from tests.support import frame_vectors

VECTORS: dict[str, list[dict[str, Any]]] = orjson.loads(frame_vectors.PATH.read_bytes())
PROTOCOL = (Path(shared.__file__).parent / "protocol" / "PROTOCOL.md").read_text("utf-8")
READERS: dict[str, Any] = {
    "OPEN": RequestHead.from_payload,
    "HEAD": ResponseHead.from_payload,
    "STATE": AgentState.from_payload,
    "DRAIN": Drain.from_payload,
}


def test_the_vectors_are_those_their_maker_makes() -> None:
    assert frame_vectors.PATH.read_bytes() == frame_vectors.make()


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda vector: str(vector["name"]))
def test_frames_are_the_bytes_of_the_vectors(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector["payload"])
    assert encode(vector["type"], vector["stream"], payload).hex() == vector["bytes"]
    _, frames = decode_message(bytes.fromhex(vector["bytes"]))
    assert frames == [(vector["type"], vector["stream"], payload)]
    assert FrameType(vector["type"]).name == vector["name"]


@pytest.mark.parametrize("vector", [v for v in VECTORS["frames"] if v["name"] in READERS])
def test_payloads_of_the_vectors_are_read_and_written_alike(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector["payload"])
    assert READERS[vector["name"]](payload).to_payload() == payload


@pytest.mark.parametrize(("name", "kind"), [("COMMAND", Command), ("RESULT", CommandResult)])
def test_commands_and_results_of_the_vectors_are_read_and_written_alike(name: str, kind: Any) -> None:
    payloads = [bytes.fromhex(v["payload"]) for v in VECTORS["frames"] if v["name"] == name]
    assert payloads
    for payload in payloads:
        assert orjson.dumps(kind.read(orjson.loads(payload)).to_dict()) == payload


@pytest.mark.parametrize("vector", VECTORS["messages"])
def test_messages_of_the_vectors_are_read(vector: dict[str, Any]) -> None:
    kind, frames = decode_message(bytes.fromhex(vector["bytes"]))
    assert (kind.value, len(frames)) == (vector["kind"], vector["frames"])


@pytest.mark.parametrize("vector", VECTORS["malformed"], ids=lambda vector: str(vector["what"]))
def test_malformed_messages_end_with_the_code_of_the_vectors(vector: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_message(bytes.fromhex(vector["unit"]) * vector["times"])
    assert caught.value.code.name == vector["code"]


def test_the_table_of_frame_types_is_the_one_in_the_code() -> None:
    rows = re.findall(
        r"^\| 0x(..) \| (\w+) \| (0|> 0|any) \| ([\d,]+)(?: … ([\d,]+))? \|", PROTOCOL, re.MULTILINE
    )
    written = {
        int(number, 16): (name, {"0": False, "> 0": True, "any": None}[stream], least, most or least)
        for number, name, stream, least, most in rows
    }
    assert written == {
        t: (FrameType(t).name, rule.on_stream, f"{rule.least_bytes:,}", f"{rule.most_bytes:,}")
        for t, rule in RULES.items()
    }


def test_the_table_of_error_codes_is_the_one_in_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", PROTOCOL, re.MULTILINE)
    assert {int(number): name for number, name in rows} == {code.value: code.name for code in ErrorCode}


def test_every_section_that_the_code_cites_exists() -> None:
    sections = set(re.findall(r"^#+ (\d+(?:\.\d+)?)[. ]", PROTOCOL, re.MULTILINE))
    root = Path(shared.__file__).parents[1]
    for package in ("shared", "gateway", "agent", "tests"):
        for path in (root / package).rglob("*.py"):
            if ".cache" in path.parts:  # what tests have installed
                continue
            cited = set(re.findall(r"PROTOCOL §(\d+(?:\.\d+)?)", path.read_text("utf-8")))
            assert cited <= sections, path


@given(st.text(max_size=600), st.sampled_from(ErrorCode))
def test_reasons_survive_and_long_ones_are_cut(reason: str, code: ErrorCode) -> None:
    read_code, read_reason = decode_reason(encode_reason(code, reason))
    assert read_code is code
    assert read_reason == reason[: limits.REASON_CHARS].encode("utf-8", "replace").decode()


@given(st.integers(0, 2**64 - 1))
def test_offsets_survive(offset: int) -> None:
    assert decode_offset(encode_offset(offset)) == offset


@pytest.mark.parametrize(
    ("read", "payload"),
    [
        (RequestHead.from_payload, b"{}"),
        (RequestHead.from_payload, frame_vectors.OPEN.replace(b'"/v1', b'"http://evil/v1')),
        (RequestHead.from_payload, frame_vectors.OPEN.replace(b"POST", b"PO ST")),
        (RequestHead.from_payload, frame_vectors.OPEN.replace(b"content-type", b"Content-Type")),
        (RequestHead.from_payload, frame_vectors.OPEN.replace(b"application/json", b"a\\r\\nb: c")),
        (RequestHead.from_payload, frame_vectors.OPEN.replace(b"131072", b"-1")),
        (RequestHead.from_payload, frame_vectors.OPEN.replace(b"131072", b"true")),
        (ResponseHead.from_payload, b'{"status":102}'),
        (ResponseHead.from_payload, b'{"status":200,"headers":[["a"]]}'),
        (Trailers.from_payload, b'{"usage":7}'),
        (Trailers.from_payload, b'{"total_s":"soon"}'),
        (AgentState.from_payload, b'{"status":"READY","deployments":[{}]}'),
        (AgentState.from_payload, b'{"status":"READY","deployments":{}}'),
        (
            AgentState.from_payload,
            b'{"status":"READY","deployments":[{"id":"a","model":"m","status":"loaded"},'
            b'{"id":"a","model":"n","status":"loaded"}]}',
        ),
        (AgentState.from_payload, b'{"status":"READY","model_memory_bytes":0}'),
        *(
            (AgentState.from_payload, frame_vectors.MANAGED.replace(right, wrong))
            for right, wrong in (
                (b'"managed":true', b'"managed":1'),
                (b'"memory_bytes":15032385536', b'"memory_bytes":0'),
                (b'"load_s":41.5', b'"load_s":-1'),
                (b'"load_progress":0.25', b'"load_progress":1.5'),
                (b'"kv_tokens":null', b'"kv_tokens":0'),
            )
        ),
        (decode_levels, b'{"d1":1.5}'),
        (decode_levels, b"null"),
        (decode_levels, b'{"d1":'),
    ],
)
def test_payloads_that_are_wrong_are_malformed(read: Any, payload: bytes) -> None:
    with pytest.raises(FrameMalformed):
        read(payload)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Command, {"id": "1", "verb": "load", "deployment": "d"}),
        (Command, {"id": 1, "verb": "dance", "deployment": "d"}),
        (Command, {"id": 1, "verb": "load"}),
        (CommandResult, {"id": 1, "ok": "yes"}),
        (CommandResult, {"id": -1, "ok": True}),
    ],
)
def test_commands_and_results_that_are_wrong_are_malformed(kind: Any, payload: dict[str, Any]) -> None:
    with pytest.raises(FrameMalformed):
        kind.read(payload)


def test_results_without_an_error_and_with_a_long_one_are_read() -> None:
    assert CommandResult.read({"id": 1, "ok": True, "newer": 1}) == CommandResult(1, True)
    assert len(CommandResult.read({"id": 1, "ok": False, "error": "e" * 4000}).error) == limits.REASON_CHARS
    assert Command.read({"id": 1, "verb": "unload", "deployment": "d"}).verb is CommandVerb.UNLOAD


def test_what_older_agents_say_is_read_with_nothing_known_of_loading() -> None:
    state = AgentState.from_payload(
        b'{"status":"READY","deployments":[{"id":"a","model":"m","status":"loaded"}],"gpus":[]}'
    )
    (deployment,) = state.deployments
    assert (deployment.managed, deployment.memory_bytes, deployment.kv_tokens) == (False, None, None)
    assert (deployment.load_s, deployment.load_progress, state.model_memory_bytes) == (None, None, None)


def test_a_name_that_looks_like_a_member_survives() -> None:
    reason = ',"managed":false,"memory_bytes":null,"load_s":null,"load_progress":null,"kv_tokens":null'
    payload = frame_vectors.MANAGED.replace(b'"reason":""', b'"reason":' + orjson.dumps(reason))
    state = AgentState.from_payload(payload)
    assert state.deployments[0].reason == reason
    assert AgentState.from_payload(state.to_payload()) == state


def test_the_kind_of_an_engine_is_an_optional_member_that_older_agents_do_not_tell() -> None:
    told = b'{"status":"READY","deployments":[{"id":"a","model":"m","status":"loaded","kind":"vllm"}]}'
    (deployment,) = AgentState.from_payload(told).deployments
    assert deployment.kind == "vllm"
    assert b'"kind":"vllm"' in AgentState.from_payload(told).to_payload()
    (silent,) = AgentState.from_payload(told.replace(b',"kind":"vllm"', b"")).deployments
    assert silent.kind == ""
    assert b"kind" not in AgentState.from_payload(told.replace(b"vllm", b"")).to_payload()
    long = told.replace(b"vllm", b"v" * 200)
    assert AgentState.from_payload(long).deployments[0].kind == "v" * limits.LABEL_CHARS
    with pytest.raises(FrameMalformed):
        AgentState.from_payload(told.replace(b'"vllm"', b"1"))


def test_a_name_that_looks_like_an_untold_kind_survives() -> None:
    reason = ',"kind":""'
    payload = frame_vectors.MANAGED.replace(b'"reason":""', b'"reason":' + orjson.dumps(reason))
    state = AgentState.from_payload(payload)
    assert state.deployments[0].reason == reason
    assert AgentState.from_payload(state.to_payload()) == state
