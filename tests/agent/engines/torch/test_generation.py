"""Permits, texts that wait and texts that grow, over a manager that the test plays."""

import asyncio
from typing import Any

import pytest
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestStatus

from agent.engines.torch.errors import GrammarFailed, OutOfMemory, Stopping
from agent.engines.torch.generation import Generation, Prompt, TextGenerator
from agent.engines.torch.logprobs import TokenLogprob
from agent.engines.torch.parsing import Sampling

END = 0


class PlayedManager:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.cancelled: list[str] = []
        self.settings: dict[str, dict[str, Any]] = {}
        self.dead = False

    def add_request(self, input_ids: list[int], /, **settings: Any) -> str | None:
        if self.dead:
            return None
        name = str(settings["request_id"])
        self.taken.append(name)
        self.settings[name] = settings
        return name

    def cancel_request(self, request_id: str) -> None:
        self.cancelled.append(request_id)


def step(request_id: str, text: str, *, ended: bool = False, finished: bool = False) -> GenerationOutput:
    """One request's output after a step."""
    status = RequestStatus.FINISHED if ended or finished else RequestStatus.DECODING
    tokens = [*text.encode(), *([END] if ended else [])]
    return GenerationOutput(request_id=request_id, generated_tokens=tokens, status=status)


def make(slots: int = 2) -> tuple[TextGenerator, PlayedManager]:
    manager = PlayedManager()
    decode = lambda ids: bytes(ids).decode(errors="replace")  # noqa: E731
    played: Any = manager
    return TextGenerator(played, decode, eos_ids=frozenset({END}), slots=slots), manager


def prompt(*stop: str, ignore_eos: bool = False, seed: int | None = None) -> Prompt:
    return Prompt(
        ids=(1, 2, 3), max_tokens=50, sampling=Sampling(seed=seed), stop=stop, ignore_eos=ignore_eos
    )


def said(generation: Generation) -> list[str]:
    return [piece.text for piece in generation.take()]


def text_of(generation: Generation) -> str:
    return "".join(said(generation))


async def test_a_text_comes_piece_by_piece_and_ends_with_its_end_token() -> None:
    texts, _ = make()
    one = texts.submit(prompt())
    texts.on_outputs([step(one.id, "a")])
    assert said(one) == ["a"]
    texts.on_outputs([step(one.id, "ab")])
    texts.on_outputs([step(one.id, "abc", ended=True)])
    assert text_of(one) == "bc"
    assert one.finish_reason == "stop"
    assert (one.usage.prompt_tokens, one.usage.completion_tokens) == (3, 4)
    assert texts.running == 0


async def test_a_text_at_its_limit_ends_for_length() -> None:
    texts, _ = make()
    one = texts.submit(prompt())
    texts.on_outputs([step(one.id, "abc", finished=True)])
    assert text_of(one) == "abc"
    assert one.finish_reason == "length"


async def test_a_stop_string_ends_the_text_and_frees_the_slot() -> None:
    texts, manager = make(slots=1)
    one, two = texts.submit(prompt("X")), texts.submit(prompt())
    texts.on_outputs([step(one.id, "abX")])
    assert text_of(one) == "ab"
    assert one.finish_reason == "stop"
    assert manager.cancelled == [one.id]
    assert manager.taken == [one.id, two.id]


async def test_the_end_token_is_text_like_any_other_when_it_is_to_be_ignored() -> None:
    texts, manager = make()
    one = texts.submit(prompt(ignore_eos=True))
    texts.on_outputs([step(one.id, "a\0b", finished=True)])
    assert text_of(one) == "a\0b"
    assert one.finish_reason == "length"
    assert manager.settings[one.id]["eos_token_id"] == [-1]


async def test_those_without_a_slot_wait_in_order() -> None:
    texts, manager = make(slots=2)
    made = [texts.submit(prompt()) for _ in range(4)]
    assert manager.taken == [one.id for one in made[:2]]
    assert (texts.running, texts.waiting) == (2, 2)
    texts.on_outputs([step(made[1].id, "x", ended=True)])
    assert manager.taken == [one.id for one in made[:3]]


async def test_closing_a_running_text_cancels_it_before_the_next_begins() -> None:
    texts, manager = make(slots=1)
    one, two = texts.submit(prompt()), texts.submit(prompt())
    one.close()
    assert manager.cancelled == [one.id]
    assert manager.taken[-1] == two.id
    one.close()
    assert manager.cancelled == [one.id]


async def test_closing_a_waiting_text_asks_nothing_of_the_manager() -> None:
    texts, manager = make(slots=1)
    texts.submit(prompt())
    two = texts.submit(prompt())
    two.close()
    assert texts.waiting == 0
    assert manager.cancelled == []


async def test_output_of_a_cancelled_text_cancels_it_again() -> None:
    """The manager misses a cancellation that comes between its looks at new requests and at cancellations."""
    texts, manager = make()
    one = texts.submit(prompt())
    one.close()
    texts.on_outputs([step(one.id, "late")])
    assert manager.cancelled == [one.id, one.id]


async def test_a_failed_text_raises_and_leaves_the_others_alone() -> None:
    texts, _ = make()
    one, two = texts.submit(prompt()), texts.submit(prompt())
    texts.on_failure(one.id, MemoryError())
    with pytest.raises(OutOfMemory):
        one.take()
    texts.on_outputs([step(two.id, "fine", ended=True)])
    assert text_of(two) == "fine"


async def test_what_was_said_before_a_failure_is_read_first() -> None:
    texts, _ = make()
    one = texts.submit(prompt())
    texts.on_outputs([step(one.id, "so far")])
    texts.on_failure(one.id, RuntimeError("broken"))
    assert said(one) == ["so far"]
    with pytest.raises(Exception, match="computation failed"):
        one.take()


async def test_stopping_fails_what_runs_and_what_waits() -> None:
    texts, _ = make(slots=1)
    made = [texts.submit(prompt()) for _ in range(2)]
    texts.stop()
    for one in made:
        with pytest.raises(Stopping):
            one.take()
    with pytest.raises(Stopping):
        texts.submit(prompt())


async def test_a_manager_that_has_ended_fails_the_text() -> None:
    texts, manager = make()
    manager.dead = True
    with pytest.raises(Stopping):
        texts.submit(prompt()).take()
    assert texts.running == 0


async def test_every_text_gets_a_seed_of_its_own_unless_it_brings_one() -> None:
    texts, manager = make(slots=3)
    made = [texts.submit(prompt()), texts.submit(prompt()), texts.submit(prompt(seed=4))]
    seeds = [manager.settings[one.id]["sampling"].sampling.seed for one in made]
    assert None not in seeds
    assert seeds[0] != seeds[1]
    assert seeds[2] == 4


async def test_there_is_news_when_there_is_text_or_an_end_or_an_error() -> None:
    texts, _ = make()
    news = asyncio.Event()
    one = texts.submit(prompt("xy"), news)
    texts.on_outputs([step(one.id, "x")])
    assert not news.is_set()  # it may be the beginning of the stop string
    texts.on_outputs([step(one.id, "xz")])
    assert news.is_set()
    news.clear()
    texts.on_failure(one.id, RuntimeError("broken"))
    assert news.is_set()


def reported(one: Generation, text: str) -> None:
    """As the computing thread notes each token's log probability."""
    for place, token in enumerate(text.encode()):
        if place >= len(one.sampling.logprobs):
            one.sampling.logprobs.append(TokenLogprob(token, -float(place)))


async def test_log_probabilities_come_with_the_text_of_their_tokens() -> None:
    texts, _ = make()
    one = texts.submit(Prompt(ids=(1,), max_tokens=9, sampling=Sampling(top_logprobs=0), stop=("cdX",)))
    for text in ("a", "ab", "abc", "abcd", "abcde"):
        reported(one, text)
        texts.on_outputs([step(one.id, text)])
    pieces = one.take()
    assert [piece.text for piece in pieces] == ["a", "b", "cde"]
    tokens = [[(chr(entry.token), entry.offset) for entry in piece.logprobs] for piece in pieces]
    assert tokens == [[("a", 0)], [("b", 1)], [("c", 2), ("d", 3), ("e", 4)]]


async def test_tokens_of_a_stop_string_are_not_reported() -> None:
    texts, _ = make()
    one = texts.submit(Prompt(ids=(1,), max_tokens=9, sampling=Sampling(top_logprobs=0), stop=("cd",)))
    for text in ("a", "ab", "abc", "abcd"):
        reported(one, text)
        texts.on_outputs([step(one.id, text)])
    assert [entry.token for piece in one.take() for entry in piece.logprobs] == [97, 98]


async def test_a_grammar_that_fails_ends_the_text_and_frees_its_slot() -> None:
    texts, manager = make(slots=1)
    one, two = texts.submit(prompt()), texts.submit(prompt())
    one.sampling.error = "too complex"
    texts.on_outputs([step(one.id, "x")])
    with pytest.raises(GrammarFailed, match="too complex"):
        one.take()
    assert manager.cancelled == [one.id]
    assert manager.taken[-1] == two.id
