"""Calls found in what models write, whole and in pieces of any length."""

from typing import Any

import orjson
import pytest

from agent.engines.torch.tool_calls import ToolCallReader, ToolFormat, tool_format

ADD = '{"name": "add", "arguments": {"a": 1, "s": "x}\\"]"}}'
NOW = '{"name": "now", "arguments": {}}'
HERMES = f"I see.\n<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>"
MISTRAL = f"[TOOL_CALLS] [{ADD}, {NOW}]"
MISTRAL_11 = 'Well.[TOOL_CALLS]add[ARGS]{"a": 1, "s": "x}\\"]"}[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}'
LLAMA = f"\n<|python_tag|>{ADD}; {NOW}".replace("arguments", "parameters")
BARE_LLAMA = '{"type": "function", "name": "add", "parameters": {"a": 1, "s": "x}\\"]"}};{"name":"now"}'
ARGUMENTS = {"a": 1, "s": 'x}"]'}


def read(reader: ToolCallReader, pieces: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """The text and the calls."""
    text = ""
    calls: list[dict[str, Any]] = []
    deltas = [delta for piece in pieces for delta in reader.push(piece)]
    for delta in [*deltas, reader.finish()]:
        text += delta.text
        for call in delta.calls:
            if call.id is not None:
                calls.append({"id": call.id, "name": call.name, "arguments": ""})
            assert call.index == len(calls) - 1
            calls[-1]["arguments"] += call.arguments
    return text, calls


def cut(text: str, length: int) -> list[str]:
    return [text[place : place + length] for place in range(0, len(text), length)]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("form", "written", "text"),
    [
        (ToolFormat.HERMES, HERMES, "I see.\n"),
        (ToolFormat.MISTRAL, MISTRAL, ""),
        (ToolFormat.MISTRAL, MISTRAL_11, "Well."),
        (ToolFormat.LLAMA, LLAMA, ""),
        (ToolFormat.LLAMA, BARE_LLAMA, ""),
    ],
    ids=["hermes", "mistral", "mistral 11", "llama", "llama without mark"],
)
def test_calls_are_found_in_every_format(form: ToolFormat, written: str, text: str, length: int) -> None:
    reader = ToolCallReader(form)
    said, calls = read(reader, cut(written, length))
    assert said == text
    assert [call["name"] for call in calls] == ["add", "now"]
    assert [orjson.loads(call["arguments"]) for call in calls] == [ARGUMENTS, {}]
    assert calls[0]["id"] != calls[1]["id"]
    assert reader.finish_reason("stop") == "tool_calls"
    assert reader.finish_reason("length") == "length"


@pytest.mark.parametrize("form", ToolFormat)
@pytest.mark.parametrize("length", [1, 5, 100])
@pytest.mark.parametrize("text", ["Just text, 1 < 2 and {braces}.", "half a <tool_", "[TOOL", "<|python"])
def test_text_without_calls_is_text(form: ToolFormat, text: str, length: int) -> None:
    reader = ToolCallReader(form)
    assert read(reader, cut(text, length)) == (text, [])
    assert reader.finish_reason("stop") == "stop"


def test_arguments_come_while_they_are_written() -> None:
    reader = ToolCallReader(ToolFormat.HERMES)
    pieces = ['<tool_call>{"name": "a', 'dd", "arguments": {"te', 'xt": "on', "e tw", 'o"', "}}</tool_call>"]
    found = [[call.arguments for delta in reader.push(piece) for call in delta.calls] for piece in pieces]
    assert found == [[], ['{"te'], ['xt": "on'], ["e tw"], ['o"'], ["}"]]


def test_arguments_before_the_name_wait_for_it() -> None:
    text = '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>'
    (call,) = read(ToolCallReader(ToolFormat.HERMES), cut(text, 4))[1]
    assert (call["name"], call["arguments"]) == ("add", '{"a": 1}')


def test_arguments_written_as_a_string_are_what_it_says() -> None:
    text = '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>'
    (call,) = read(ToolCallReader(ToolFormat.HERMES), cut(text, 4))[1]
    assert call["arguments"] == '{"a": 1}'


@pytest.mark.parametrize(
    "text", ["<tool_call>add(1)</tool_call>", '<tool_call>{"a": 1', '<tool_call>{"a": 1}']
)
def test_what_is_no_call_after_its_mark_is_not_lost(text: str) -> None:
    said, calls = read(ToolCallReader(ToolFormat.HERMES), cut(text, 3))
    assert calls == []
    assert said.removeprefix("<tool_call>") == text.removeprefix("<tool_call>")


def test_an_answer_may_end_after_one_call() -> None:
    reader = ToolCallReader(ToolFormat.HERMES, several=False)
    calls = [
        call for piece in cut(HERMES, 5) for delta in reader.push(piece) for call in delta.calls if call.id
    ]
    assert reader.complete
    assert [call.name for call in calls] == ["add"]


def test_a_named_function_ends_as_openais_do() -> None:
    reader = ToolCallReader(ToolFormat.HERMES, named=True)
    read(reader, [HERMES])
    assert reader.finish_reason("stop") == "stop"


def test_a_text_that_goes_on_does_not_begin_with_a_call() -> None:
    assert read(ToolCallReader(ToolFormat.LLAMA, begun=True), [BARE_LLAMA]) == (BARE_LLAMA, [])


def test_mistrals_ids_are_as_long_as_its_templates_want() -> None:
    (first, _) = read(ToolCallReader(ToolFormat.MISTRAL), [MISTRAL])[1]
    assert len(first["id"]) == 9
    assert first["id"].isalnum()


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}<tool_call>{% endif %}", ToolFormat.HERMES),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", ToolFormat.MISTRAL),
        ("Environment: ipython", ToolFormat.LLAMA),
        ("{{ messages }}", ToolFormat.HERMES),
    ],
)
def test_the_template_says_the_format(template: str, form: ToolFormat) -> None:
    assert tool_format(template) is form
