"""Tokens to text piece by piece; and what a model goes on from: exactly the tokens it had written."""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from agent.engines.torch.chat_requests import ChatRequest
from agent.engines.torch.demo import DEMO_ANSWERS_FILE, DEMO_COMPLETIONS_FILE, DEMO_MODEL_DIR
from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.text import IncrementalDecoder, Rendered, StopStrings, TextAssembler, render


def decode_bytes(token_ids: list[int]) -> str:
    """A byte-level tokenizer at its plainest: a token is a byte."""
    return bytes(token_ids).decode(errors="replace")


WORDS = ["▁Hello", "▁world", ",", "▁again"]


def decode_words(token_ids: list[int]) -> str:
    """Like SentencePiece: the space before the first word is dropped."""
    return "".join(WORDS[token] for token in token_ids).replace("▁", " ").removeprefix(" ")


def pieces_of(decoder: IncrementalDecoder, token_ids: Sequence[int]) -> list[str]:
    return [*(decoder.push([token]) for token in token_ids), decoder.finish()]


@given(st.text())
def test_pieces_joined_are_the_text(text: str) -> None:
    whole = text.rstrip("\ufffd")
    assert "".join(pieces_of(IncrementalDecoder(decode_bytes), text.encode())).rstrip("\ufffd") == whole


@given(st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"])))
def test_no_piece_holds_half_a_character(text: str) -> None:
    for piece in pieces_of(IncrementalDecoder(decode_bytes), text.encode()):
        assert "\ufffd" not in piece


def test_a_character_is_said_with_its_last_byte() -> None:
    assert pieces_of(IncrementalDecoder(decode_bytes), "é😀".encode()) == ["", "é", "", "", "", "😀", ""]


def test_a_character_cut_off_by_the_end_is_never_said() -> None:
    assert pieces_of(IncrementalDecoder(decode_bytes), "a😀".encode()[:-1]) == ["a", "", "", "", ""]


def test_bytes_that_are_no_text_are_not_held_for_ever() -> None:
    pieces = pieces_of(IncrementalDecoder(decode_bytes), b"\xff" * 30)
    assert sum(map(len, pieces)) >= 18


def test_spaces_between_words_survive_a_tokenizer_that_drops_the_first() -> None:
    assert pieces_of(IncrementalDecoder(decode_words), [0, 1, 2, 3]) == ["Hello", " world", ",", " again", ""]


def test_tokens_without_text_say_nothing() -> None:
    decoder = IncrementalDecoder(lambda ids: "")
    assert pieces_of(decoder, range(100)) == [""] * 101


def test_text_ends_before_the_stop_string() -> None:
    stops = StopStrings(["END"])
    assert stops.push("to the END and on") == "to the "
    assert stops.found
    assert stops.push("more") == ""
    assert stops.finish() == ""


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    stops = StopStrings(["</s>"])
    assert stops.push("a <") == "a "
    assert stops.push("/s") == ""
    assert stops.push("mall>") == "</small>"
    assert not stops.found


def test_what_was_held_back_is_said_at_the_end() -> None:
    stops = StopStrings(["\n\n"])
    assert stops.push("line\n") == "line"
    assert stops.finish() == "\n"


def test_the_first_of_several_stop_strings_counts() -> None:
    stops = StopStrings(["later", "soon"])
    assert stops.push("it stops soon, not later") == "it stops "


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_stopping_does_not_depend_on_how_text_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    scanner = StopStrings(stops)
    said, rest = "", text
    while rest:
        length = data.draw(st.integers(1, len(rest)))
        said += scanner.push(rest[:length])
        rest = rest[length:]
    said += scanner.finish()
    spans = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert said == (text[: min(spans)[1]] if spans else text)
    assert scanner.found == bool(spans)


@pytest.mark.parametrize("stop", ["é", "naï"])
def test_stop_strings_are_found_across_characters_of_several_tokens(stop: str) -> None:
    assembler = TextAssembler(decode_bytes, [stop])
    said = "".join(assembler.push([byte]) for byte in "so naïvé".encode())
    assert assembler.stopped
    assert said + assembler.finish() == "so naïvé".partition(stop)[0]


EVERY = 1 if os.environ.get("TRUNKLINE_TEST_ENGINES") == "full" else 12

ASK = {"role": "user", "content": "What is a slot?"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO_MODEL_DIR, local_files_only=True)


def rendered(tokenizer: Any, *messages: dict[str, str], **body: Any) -> Rendered:
    return render(tokenizer, ChatRequest.read({"messages": list(messages), **body}))


def continued(tokenizer: Any, text: str, *before: dict[str, str]) -> Rendered:
    answer = {"role": "assistant", "content": text}
    return rendered(tokenizer, *(before or (ASK,)), answer, continue_final_message=True)


def cuts(tokenizer: Any, ids: list[int]) -> Iterator[tuple[int, str]]:
    """Every beginning of a text that ends between two streamed pieces."""
    for cut in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:cut])
        if not text.endswith("\ufffd"):
            yield cut, text


def test_a_recorded_answer_cut_anywhere_is_the_tokens_that_made_it(tokenizer: Any) -> None:
    for row in json.loads(DEMO_ANSWERS_FILE.read_text("utf-8"))[::EVERY]:
        before = rendered(tokenizer, *row["messages"]).ids
        ids = tokenizer.encode(row["answer"])
        for cut, text in cuts(tokenizer, ids):
            assert continued(tokenizer, text, *row["messages"]) == Rendered((*before, *ids[:cut]), cut), text


def test_a_recorded_completion_cut_anywhere_is_the_tokens_that_made_it(tokenizer: Any) -> None:
    for row in json.loads(DEMO_COMPLETIONS_FILE.read_text("utf-8")):
        before, ids = tokenizer.encode(row["prompt"]), tokenizer.encode(row["answer"])
        for cut, text in cuts(tokenizer, ids):
            assert tokenizer.encode(row["prompt"] + text) == [*before, *ids[:cut]], text


@pytest.mark.parametrize("text", ["a slot\n\n", " a slot ", "\n- a", "<|end|>", "", "caf\u00e9 \U0001f600"])
def test_nothing_of_the_beginning_is_tidied_up(tokenizer: Any, text: str) -> None:
    before = rendered(tokenizer, ASK).ids
    found = continued(tokenizer, text)
    assert found.ids[: len(before)] == before
    assert found.continued == len(found.ids) - len(before)
    assert tokenizer.decode(found.ids[len(before) :]) == text


def test_a_template_that_trims_messages_or_asks_otherwise_changes_nothing(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<assistant><think></think>{% endif %}"
    )
    monkeypatch.setattr(tokenizer, "chat_template", template)
    before = rendered(tokenizer, ASK).ids
    found = continued(tokenizer, " a slot\n")
    assert found.ids == (*before, *tokenizer.encode(" a slot\n"))


def test_a_template_that_wants_a_question_before_the_answer_is_taken_whole(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = (
        "{% if messages[-1].role != 'assistant' %}{{ raise_exception('no answer') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    )
    monkeypatch.setattr(tokenizer, "chat_template", template)
    found = continued(tokenizer, "a slot")
    assert tokenizer.decode(found.ids) == "What is a slot?<|end|>a slot"
    assert found.continued == len(tokenizer.encode("a slot"))


ADD = {"type": "function", "function": {"name": "add", "description": "sum"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_tools_and_calls_are_rendered_by_a_template_that_knows_them(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = (
        "{% for tool in tools or [] %}[{{ tool.function.name }}:{{ tool.function.description }}]{% endfor %}"
    )
    calls = "{% for call in message.tool_calls or [] %}{{ call.function.arguments.a + 1 }}{% endfor %}"
    told = "{{ message.role }}:{{ message.content }}" + calls
    template = tools + "{% for message in messages %}" + told + ";{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    messages: list[Any] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    text = tokenizer.decode(rendered(tokenizer, *messages, tools=[ADD]).ids)
    assert text == "[add:sum]user:x;assistant:2;tool:2;"
    assert "add" not in tokenizer.decode(
        rendered(tokenizer, messages[0], tools=[ADD], tool_choice="none").ids
    )


def test_tools_are_told_in_words_to_a_template_that_knows_none(tokenizer: Any) -> None:
    text = tokenizer.decode(rendered(tokenizer, {"role": "user", "content": "x"}, tools=[ADD]).ids)
    assert '{"type":"function","function":{"name":"add","description":"sum"}}' in text


@pytest.mark.parametrize("template", ["", "{{ tools | tojson }}{{ messages | tojson }}"])
def test_tools_and_calls_that_are_nested_too_deeply_are_refused(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    if template:
        monkeypatch.setattr(tokenizer, "chat_template", template)
    levels: dict[str, Any] = {}
    for _ in range(1000):
        levels = {"a": levels}
    deep = {"type": "function", "function": {"name": "add", "parameters": levels}}
    called = CALL | {"function": {"name": "add", "arguments": "[" * 1000 + "]" * 1000}}
    answer: Any = {"role": "assistant", "tool_calls": [called]}
    for messages, tools in (([ASK], [deep]), ([ASK, answer], [])):
        with pytest.raises(InvalidRequest, match="does not take these messages"):
            rendered(tokenizer, *messages, tools=tools)
