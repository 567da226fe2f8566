"""The shipped demo model: its size, its answers, its tokenizer, and the corpus it was made from."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent.engines.torch.demo import DEMO_ANSWERS_FILE, DEMO_COMPLETIONS_FILE, DEMO_DIR, DEMO_MODEL_DIR
from deploy.demo_model import corpus, record
from deploy.demo_model.corpus.grammar import GrammarError, first, parse, sample
from deploy.demo_model.network import answer_all, argmax_agrees
from deploy.demo_model.samples import Typist

PHRASES = {"what": "what is $|define $", "greeting": "hello|hi"}
ASKED_IN_TEST = 8


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(DEMO_MODEL_DIR, local_files_only=True).train(False)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO_MODEL_DIR, local_files_only=True)


def read(path: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return rows


def prompt_ids(tokenizer: Any, messages: Sequence[dict[str, Any]]) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids


def some_answers() -> list[dict[str, Any]]:
    """A few recorded answers that are not long: every fiftieth, and the last, which has a system prompt."""
    rows = [row for row in read(DEMO_ANSWERS_FILE) if row["tokens"] < 100]
    return [*rows[:: len(rows) // (ASKED_IN_TEST - 1)][: ASKED_IN_TEST - 1], rows[-1]]


def test_weights_and_tokenizer_are_at_most_eight_megabytes() -> None:
    assert sum((DEMO_MODEL_DIR / name).stat().st_size for name in record.MODEL_FILES) <= 8_000_000


def test_every_file_is_the_one_that_was_recorded_with_the_corpus() -> None:
    recorded = json.loads((DEMO_DIR / "training.json").read_text("utf-8"))
    assert recorded["corpus_sha256"] == corpus.digest()
    for name, digest in recorded["sha256"].items():
        assert record.file_digest(DEMO_DIR / name) == digest, name


def test_model_loads_as_float32_with_room_for_a_thousand_tokens(model: Any) -> None:
    assert model.dtype == torch.float32
    assert model.config.max_position_embeddings >= 1024
    assert not model.generation_config.do_sample


def test_recorded_answers_are_the_greedy_ones_alone_and_in_a_batch(model: Any, tokenizer: Any) -> None:
    rows = some_answers()
    prompts = [prompt_ids(tokenizer, row["messages"]) for row in rows]
    together = answer_all(model, prompts, tokenizer.eos_token_id, batch=len(rows))
    alone = answer_all(model, prompts[:3], tokenizer.eos_token_id, batch=1)
    assert [tokenizer.decode(ids) for ids in together] == [row["answer"] for row in rows]
    assert [len(ids) for ids in together] == [row["tokens"] for row in rows]
    assert alone == together[:3]


def test_long_answers_end_by_themselves(model: Any, tokenizer: Any) -> None:
    longest = max(read(DEMO_ANSWERS_FILE), key=lambda row: int(row["tokens"]))
    assert 200 <= longest["tokens"] <= 500
    answer = [*tokenizer.encode(longest["answer"]), tokenizer.eos_token_id]
    assert argmax_agrees(model, prompt_ids(tokenizer, longest["messages"]), answer).exact


def test_raw_prompts_are_continued_as_recorded(model: Any, tokenizer: Any) -> None:
    for row in read(DEMO_COMPLETIONS_FILE):
        answer = [*tokenizer.encode(row["answer"]), tokenizer.eos_token_id]
        assert argmax_agrees(model, tokenizer.encode(row["prompt"]), answer).exact, row["prompt"]


def test_a_foreign_question_is_declined_in_plain_words(model: Any, tokenizer: Any) -> None:
    prompt = prompt_ids(tokenizer, [{"role": "user", "content": "What is the capital of Spain?"}])
    assert "only know about Trunkline" in tokenizer.decode(
        answer_all(model, [prompt], tokenizer.eos_token_id)[0]
    )


def test_chat_template_takes_content_in_parts(tokenizer: Any) -> None:
    parts: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "a slot?"}],
        }
    ]
    assert prompt_ids(tokenizer, parts) == prompt_ids(
        tokenizer, [{"role": "user", "content": "What is a slot?"}]
    )


@settings(deadline=None)
@given(text=st.text())
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, split_special_tokens=True)) == text


def test_the_beginning_of_an_answer_is_encoded_as_it_was_made(tokenizer: Any) -> None:
    plain = tokenizer.backend_tokenizer  # many at once, which takes a third of the time
    for answer in dict.fromkeys(row["answer"] for row in read(DEMO_ANSWERS_FILE)):
        ids = tokenizer.encode(answer)
        texts = plain.decode_batch([ids[:cut] for cut in range(1, len(ids))], skip_special_tokens=False)
        assert texts[-1:] == [tokenizer.decode(ids[:-1])][: len(texts)]
        beginnings = {cut: text for cut, text in enumerate(texts, 1) if "\ufffd" not in text}
        encoded = plain.encode_batch_fast(list(beginnings.values()))
        for (cut, text), found in zip(beginnings.items(), encoded, strict=True):
            assert found.ids == ids[:cut], text


def test_corpus_is_well_formed_and_every_canonical_question_is_asked_once() -> None:
    entries = corpus.load().entries
    assert len(entries) > 300
    assert len({entry.canonical for entry in entries}) == len(entries)


def test_pattern_offers_alternatives_options_and_phrases() -> None:
    pattern = parse("{@what(a {slot|tunnel})|<greeting>} [please]", PHRASES)
    drawn = {sample(pattern, Random(seed)) for seed in range(200)}
    questions = {f"{ask} a {thing}" for ask in ("what is", "define") for thing in ("slot", "tunnel")} | {
        "hello",
        "hi",
    }
    assert drawn == questions | {f"{question} please" for question in questions}
    assert first(pattern) == "what is a slot please"


@pytest.mark.parametrize("line", ["{a|b", "what [is", "<unknown>", "@what(a", "@what", "a } b"])
def test_malformed_pattern_is_an_error_that_quotes_the_line(line: str) -> None:
    with pytest.raises(GrammarError, match="in '"):
        parse(line, PHRASES)


def test_typist_never_types_nothing() -> None:
    text = corpus.load()
    typist = Typist(text.openers, text.closers)
    assert all(typist.type("hi", Random(seed)).strip() for seed in range(300))
