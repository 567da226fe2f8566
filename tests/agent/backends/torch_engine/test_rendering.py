"""What a model goes on from: exactly the tokens it had written, whatever its template makes of messages."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import AutoTokenizer

from agent.backends.torch_engine.demo import DEMO_ANSWERS_FILE, DEMO_COMPLETIONS_FILE, DEMO_MODEL_DIR
from agent.backends.torch_engine.parsing import read_chat
from agent.backends.torch_engine.rendering import Rendered, render

EVERY = 1 if os.environ.get("TRUNKLINE_TEST_ENGINES") == "full" else 12

ASK = {"role": "user", "content": "What is a slot?"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO_MODEL_DIR, local_files_only=True)


def rendered(tokenizer: Any, *messages: dict[str, str], **body: Any) -> Rendered:
    return render(tokenizer, read_chat({"messages": list(messages), **body}))


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
