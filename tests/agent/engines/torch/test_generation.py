"""Permits, texts that wait and texts that grow, over a manager that the test plays."""

import asyncio
from typing import Any

import pytest
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestStatus

from agent.engines.torch.errors import OutOfMemory, Stopping
from agent.engines.torch.generation import Generation, Prompt, TextGenerator
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


async def text_of(generation: Generation) -> str:
    text = ""
    while pieces := await generation.next_pieces():
        text += "".join(pieces)
    return text


async def test_a_text_comes_piece_by_piece_and_ends_with_its_end_token() -> None:
    texts, _ = make()
    one = texts.submit(prompt())
    texts.on_outputs([step(one.id, "a")])
    assert await one.next_pieces() == ["a"]
    texts.on_outputs([step(one.id, "ab")])
    texts.on_outputs([step(one.id, "abc", ended=True)])
    assert await text_of(one) == "bc"
    assert one.finish_reason == "stop"
    assert (one.usage.prompt_tokens, one.usage.completion_tokens) == (3, 4)
    assert texts.running == 0


async def test_a_text_at_its_limit_ends_for_length() -> None:
    texts, _ = make()
    one = texts.submit(prompt())
    texts.on_outputs([step(one.id, "abc", finished=True)])
    assert await text_of(one) == "abc"
    assert one.finish_reason == "length"


async def test_a_stop_string_ends_the_text_and_frees_the_slot() -> None:
    texts, manager = make(slots=1)
    one, two = texts.submit(prompt("X")), texts.submit(prompt())
    texts.on_outputs([step(one.id, "abX")])
    assert await text_of(one) == "ab"
    assert one.finish_reason == "stop"
    assert manager.cancelled == [one.id]
    assert manager.taken == [one.id, two.id]


async def test_the_end_token_is_text_like_any_other_when_it_is_to_be_ignored() -> None:
    texts, manager = make()
    one = texts.submit(prompt(ignore_eos=True))
    texts.on_outputs([step(one.id, "a\0b", finished=True)])
    assert await text_of(one) == "a\0b"
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
        await one.next_pieces()
    texts.on_outputs([step(two.id, "fine", ended=True)])
    assert await text_of(two) == "fine"


async def test_what_was_said_before_a_failure_is_read_first() -> None:
    texts, _ = make()
    one = texts.submit(prompt())
    texts.on_outputs([step(one.id, "so far")])
    texts.on_failure(one.id, RuntimeError("broken"))
    assert await one.next_pieces() == ["so far"]
    with pytest.raises(Exception, match="computation failed"):
        await one.next_pieces()


async def test_stopping_fails_what_runs_and_what_waits() -> None:
    texts, _ = make(slots=1)
    made = [texts.submit(prompt()) for _ in range(2)]
    texts.stop()
    for one in made:
        with pytest.raises(Stopping):
            await one.next_pieces()
    with pytest.raises(Stopping):
        texts.submit(prompt())


async def test_a_manager_that_has_ended_fails_the_text() -> None:
    texts, manager = make()
    manager.dead = True
    with pytest.raises(Stopping):
        await texts.submit(prompt()).next_pieces()
    assert texts.running == 0


async def test_every_text_gets_a_seed_of_its_own_unless_it_brings_one() -> None:
    texts, manager = make(slots=3)
    made = [texts.submit(prompt()), texts.submit(prompt()), texts.submit(prompt(seed=4))]
    seeds = [manager.settings[one.id]["sampling"].seed for one in made]
    assert None not in seeds
    assert seeds[0] != seeds[1]
    assert seeds[2] == 4


async def test_a_reader_wakes_when_there_is_news() -> None:
    texts, _ = make()
    one = texts.submit(prompt())
    reading = asyncio.ensure_future(one.next_pieces())
    await asyncio.sleep(0)
    assert not reading.done()
    texts.on_outputs([step(one.id, "x")])
    assert await reading == ["x"]
