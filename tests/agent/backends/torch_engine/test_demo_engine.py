"""The engine with the demo model says exactly what was recorded when the model was made."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import torch

from agent.backends.torch_engine.demo import DEMO_ANSWERS_FILE, DEMO_COMPLETIONS_FILE
from agent.backends.torch_engine.engine import Engine
from agent.backends.torch_engine.options import EngineOptions, locate
from agent.backends.torch_engine.parsing import read_chat, read_completion

ANSWERS = 24
"""Of those recorded, evenly spread; all of them take the test of the model itself half a minute."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    torch.set_num_threads(1)
    directory, name = locate("demo")
    engine = Engine.load(EngineOptions(model=directory, name=name, device="cpu", slots=16))
    yield engine
    assert engine.stop(timeout_s=5.0)


async def answer(engine: Engine, asked: dict[str, Any]) -> tuple[str, str | None, int]:
    if "messages" in asked:
        generation = await engine.chat(read_chat({"messages": asked["messages"]}))
    else:
        generation = await engine.complete(read_completion({"prompt": asked["prompt"], "max_tokens": 512}))
    said = ""
    while pieces := await generation.next_pieces():
        said += "".join(pieces)
    return said, generation.finish_reason, generation.usage.completion_tokens


async def test_answers_are_the_recorded_ones_in_any_company(engine: Engine) -> None:
    engine.start(lambda reason: None)
    recorded = orjson.loads(DEMO_ANSWERS_FILE.read_bytes())
    chosen = list(itertools.islice(recorded, 0, None, max(1, len(recorded) // ANSWERS)))
    chosen += orjson.loads(DEMO_COMPLETIONS_FILE.read_bytes())
    expected = [(one["answer"], "stop", one["tokens"] + 1) for one in chosen]
    assert await answer(engine, chosen[0]) == expected[0]
    assert list(await asyncio.gather(*(answer(engine, one) for one in chosen))) == expected
