"""Engines that do otherwise than most, as some real ones do: clients need not know."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
from openai import AsyncOpenAI

from tests.integration.conftest import Site
from tests.support.processes import Engine, answer_to, fetch
from tests.support.scripted_engine import Habit


@dataclass(frozen=True, slots=True)
class Odd:
    """An engine with a habit, behind an agent of its own."""

    site: Site
    engine: Engine
    model: str

    async def ask(self, sdk: AsyncOpenAI, tokens: int, **script: object) -> tuple[str, str | None]:
        """The text of a streamed answer, and why it ended."""
        stream = await sdk.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=tokens,
            stream=True,
            extra_body={"script": script},
        )
        choices = [chunk.choices[0] async for chunk in stream]
        return "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason


@pytest.fixture(scope="module", params=[*Habit])
def odd(faulty: Site, request: pytest.FixtureRequest) -> Iterator[Odd]:
    house, habit = faulty.house, str(request.param)
    engine = house.engine("--model", habit, "--habit", habit, name=f"{habit}-engine")
    settings = house.directory / f"{habit}.toml"
    settings.write_text(f'[[engine]]\nurl = "{engine.url}"\nrefresh_s = 0.5\n')
    agent = house.agent(faulty.gateway, None, "--config", str(settings), name=f"{habit}-agent")
    house.wait_for_model(faulty.gateway, faulty.key, habit)
    yield Odd(faulty, engine, habit)
    house.children.stop(agent)
    house.children.stop(engine.child)


@pytest.fixture
async def sdk(odd: Odd) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=odd.site.base_url, api_key=odd.site.key, max_retries=0) as client:
        yield client


async def test_its_answers_are_whole_and_come_one_after_the_other_without_a_pause(
    odd: Odd, sdk: AsyncOpenAI
) -> None:
    """One taken for broken would get one request a second, and sixty would not be there within 45."""
    async with asyncio.timeout(45):
        for _ in range(60):
            assert await odd.ask(sdk, 5) == (answer_to("hi", 5), "length")


async def test_streams_outlast_the_looks_at_their_engine(odd: Odd, sdk: AsyncOpenAI) -> None:
    async with asyncio.timeout(30):
        before = _looks(odd)
        answers = await asyncio.gather(*(odd.ask(sdk, 60, tokens_per_s=40) for _ in range(2)))
    assert answers == [(answer_to("hi", 60), "length")] * 2
    assert _looks(odd) > before or odd.model in (Habit.INTERRUPTS, Habit.LOOKS_INTERRUPT)
    assert fetch(f"{odd.engine.url}/_stats")["interrupted"] == 0


def _looks(odd: Odd) -> int:
    """How often the engine was asked what it serves."""
    requests = fetch(f"{odd.engine.url}/_stats")["requests"]
    return sum(each == "GET /v1/models" for each in requests)
