"""What is made of what a client's program writes, and the engine that the programs are run against."""

from typing import Any

import pytest

from tests.clients.install import CLIENTS, PROGRAMS, Client
from tests.clients.running import read_result, table
from tests.support.chat_engine import BadConversation, chunks, instance_of, whole

CLIENT = Client("A client", "a_python.py", ("a==1.2", "b==3"))
PASSED = '{"check": "chat", "ok": true, "detail": ""}\n'
FAILED = '{"check": "tools", "ok": false, "detail": "ValueError: no"}\n'
UNASKED = '{"check": "stream", "ok": null, "detail": "it cannot"}\n'


def test_every_client_has_a_program() -> None:
    assert all((PROGRAMS / client.program).exists() for client in CLIENTS)


def test_a_table_tells_what_passed_what_failed_and_what_was_not_asked() -> None:
    result = read_result(CLIENT, f"noise\n{PASSED}{FAILED}{UNASKED}", 0, "")
    assert result.failures == ["tools: ValueError: no"]
    assert table("e", [result]).splitlines()[2].startswith("| A client (a 1.2) | yes | – | no | – |")


@pytest.mark.parametrize(("output", "returncode"), [("", 0), ("", 1), (PASSED, 1)])
def test_a_program_that_did_not_come_to_its_end_has_failed(output: str, returncode: int) -> None:
    result = read_result(CLIENT, output, returncode, "ImportError: a")
    assert "ImportError" in result.failures[0]
    assert "?" in table("e", [result])


SCHEMA: dict[str, Any] = {
    "$defs": {"Kind": {"enum": ["a", "b"]}},
    "type": "object",
    "properties": {
        "kind": {"$ref": "#/$defs/Kind"},
        "parts": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    },
}


def test_the_engine_answers_in_the_schema_that_is_asked_for() -> None:
    assert instance_of(SCHEMA) == {"kind": "a", "parts": [7]}


@pytest.mark.parametrize("choice", ["auto", {"type": "function", "function": {"name": "f"}}])
def test_its_stream_says_what_its_answer_in_one_piece_says(choice: object) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    asked: Any = {"messages": [{"role": "user", "content": "two  words "}]}
    for request in (asked, asked | {"tools": [tool], "tool_choice": choice}):
        message = whole(request)["choices"][0]["message"]
        deltas = [each["choices"][0]["delta"] for each in chunks(request)]
        text = "".join(delta.get("content") or "" for delta in deltas)
        calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
        assert text == (message["content"] or "")
        arguments = "".join(call["arguments"] for call in calls)
        assert arguments == "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "nobody", "content": "x"}],
        [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}],
        [{"role": "tool", "tool_call_id": "call_1", "content": "x"}],
    ],
)
def test_it_refuses_what_chat_templates_refuse(messages: object) -> None:
    with pytest.raises(BadConversation):
        whole({"messages": messages})
