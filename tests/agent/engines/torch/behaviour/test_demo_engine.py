"""The engine with the demo model says exactly what was recorded when the model was made."""

import asyncio
import itertools
import os
from collections.abc import Iterator
from random import Random
from typing import Any

import orjson
import pytest
import torch

from agent.engines.torch.chat_requests import ChatRequest
from agent.engines.torch.demo import DEMO_ANSWERS_FILE, DEMO_COMPLETIONS_FILE
from agent.engines.torch.engine import TorchEngine
from agent.engines.torch.parsing import CompletionRequest
from agent.engines.torch.startup import EngineOptions, locate
from tests.agent.engines.torch.reading import rest_of

FULL = os.environ.get("TRUNKLINE_TEST_ENGINES") == "full"
ANSWERS = 24 if FULL else 12
"""Of those recorded, evenly spread; all of them take the test of the model itself half a minute."""

CUTS = 2000 if FULL else 20
"""Places, of all in all recorded answers, at which an answer is continued."""


@pytest.fixture(scope="module")
def engine() -> Iterator[TorchEngine]:
    torch.set_num_threads(1)
    directory, name = locate("demo")
    engine = TorchEngine.load(EngineOptions(model=directory, name=name, device="cpu", slots=16))
    yield engine
    assert engine.stop(timeout_s=5.0)


MEMBERS = {"messages", "continue_final_message", "max_tokens", "response_format"}


async def answer(engine: TorchEngine, asked: dict[str, Any]) -> tuple[str, str | None, int]:
    if "messages" in asked:
        begun = await engine.chat(ChatRequest.read({name: asked[name] for name in MEMBERS & asked.keys()}))
    else:
        begun = await engine.complete(CompletionRequest.read({"prompt": asked["prompt"], "max_tokens": 512}))
    said = await rest_of(begun)
    return said, begun.generations[0].finish_reason, begun.usage.completion_tokens


async def test_answers_are_the_recorded_ones_in_any_company(engine: TorchEngine) -> None:
    engine.start(lambda reason: None)
    recorded = orjson.loads(DEMO_ANSWERS_FILE.read_bytes())
    chosen = list(itertools.islice(recorded, 0, None, max(1, len(recorded) // ANSWERS)))
    chosen += orjson.loads(DEMO_COMPLETIONS_FILE.read_bytes())
    expected = [(one["answer"], "stop", one["tokens"] + 1) for one in chosen]
    assert await answer(engine, chosen[0]) == expected[0]
    assert list(await asyncio.gather(*(answer(engine, one) for one in chosen))) == expected


def cut(
    engine: TorchEngine, row: dict[str, Any], chance: Random
) -> tuple[dict[str, Any], tuple[str, str, int]]:
    """The request that continues a recorded answer from somewhere, and what must be said to it."""
    tokenizer = engine.model.tokenizer
    ids = tokenizer.encode(row["answer"])
    place = chance.randrange(1, len(ids) + 1)
    while (text := tokenizer.decode(ids[:place])).endswith("\ufffd"):
        place -= 1
    expected = row["answer"][len(text) :], "stop", len(ids) - place + 1
    if "prompt" in row:
        return {"prompt": row["prompt"] + text}, expected
    begun = {"role": "assistant", "content": text}
    return {"messages": [*row["messages"], begun], "continue_final_message": True}, expected


async def test_an_answer_continued_anywhere_goes_on_as_recorded(engine: TorchEngine) -> None:
    engine.start(lambda reason: None)
    rows = orjson.loads(DEMO_ANSWERS_FILE.read_bytes()) + orjson.loads(DEMO_COMPLETIONS_FILE.read_bytes())
    chance = Random(3)
    chosen = [cut(engine, row, chance) for row in chance.choices(rows[:-11], k=CUTS) + rows[-11:]]
    found = await asyncio.gather(*(answer(engine, asked) for asked, _ in chosen))
    assert list(found) == [expected for _, expected in chosen]


async def test_the_limit_of_a_continued_answer_ends_it_where_it_would_have_ended(engine: TorchEngine) -> None:
    engine.start(lambda reason: None)
    row = orjson.loads(DEMO_ANSWERS_FILE.read_bytes())[0]
    whole = await answer(engine, {"messages": row["messages"], "max_tokens": 20})
    ids = engine.model.tokenizer.encode(whole[0])
    begun = {"role": "assistant", "content": engine.model.tokenizer.decode(ids[:7])}
    asked = {"messages": [*row["messages"], begun], "continue_final_message": True, "max_tokens": 13}
    assert await answer(engine, asked) == (whole[0][len(begun["content"]) :], "length", 13)


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "celsius": {"type": "integer"}},
    "required": ["city", "celsius"],
}
QUESTIONS = ("What is the weather in Oslo?", "Who are you?", "What does it cost?", "How do I make a key?")


async def test_an_answer_in_json_ends_though_its_schema_limits_no_string(engine: TorchEngine) -> None:
    pytest.importorskip("llguidance")
    engine.start(lambda reason: None)
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER}}
    asked = {"response_format": form, "max_tokens": 300}
    for question in QUESTIONS:
        said, reason, _ = await answer(engine, asked | {"messages": [{"role": "user", "content": question}]})
        assert reason == "stop", said
        found = orjson.loads(said)
        assert set(found) == {"city", "celsius"}
        assert isinstance(found["celsius"], int)
