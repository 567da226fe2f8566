"""A real engine nobody here wrote, behind an agent: ``transformers serve`` with a tiny model."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AsyncOpenAI, UnprocessableEntityError
from openai.types.chat import ChatCompletionUserMessageParam

from shared.process.ports import free_port
from tests.integration.conftest import TINY
from tests.support.processes import Gateway, House, fetch

pytestmark = pytest.mark.engine

_FULL = os.environ.get("TRUNKLINE_TEST_ENGINES") == "full"
_PROMPT: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]


@dataclass(frozen=True, slots=True)
class Served:
    """The engine, and the gateway whose agent stands in front of it."""

    engine_url: str
    gateway: Gateway
    key: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_hub: Path) -> Iterator[Served]:
    pytest.importorskip("fastapi", reason="transformers serve needs fastapi")
    directory = tmp_path_factory.mktemp("engines")
    with House(directory) as house:
        port = free_port()
        environment = {"HF_HUB_CACHE": str(tiny_hub), "HF_HUB_OFFLINE": "1"}
        where = ("--host", "127.0.0.1", "--port", str(port), "--device", "cpu")
        module = "transformers.cli.transformers"
        house.children.start("serve", module, "serve", TINY, *where, environment=environment)
        url = f"http://127.0.0.1:{port}"
        house.children.wait_until(lambda: _healthy(url), "transformers serve is healthy", 180)
        gateway = house.gateway()
        key = gateway.key("tests")
        house.agent(gateway, url)
        house.wait_for_model(gateway, key, TINY)
        yield Served(url, gateway, key)


def _healthy(url: str) -> bool:
    try:
        fetch(f"{url}/health")
    except OSError:
        return False
    return True


async def _streamed(base_url: str, key: str, count: int) -> list[str]:
    async with AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as sdk:
        stream = await sdk.chat.completions.create(
            model=TINY, messages=_PROMPT, max_tokens=count, temperature=0, stream=True
        )
        pieces = [choice.delta.content async for chunk in stream for choice in chunk.choices]
    return [piece for piece in pieces if piece]


async def test_a_chat_is_streamed_through_exactly_as_the_engine_gives_it(served: Served) -> None:
    count = 200 if _FULL else 24
    through = await _streamed(served.gateway.base_url, served.key, count)
    direct = await _streamed(f"{served.engine_url}/v1", "none", count)
    assert through == direct
    assert len(through) > count // 2


async def test_a_plain_chat_has_the_streamed_text_and_usage(served: Served) -> None:
    async with AsyncOpenAI(base_url=served.gateway.base_url, api_key=served.key) as sdk:
        answer = await sdk.chat.completions.create(model=TINY, messages=_PROMPT, max_tokens=24, temperature=0)
    streamed = await _streamed(served.gateway.base_url, served.key, 24)
    assert answer.choices[0].message.content == "".join(streamed)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24


async def test_what_the_engine_refuses_comes_back_as_its_refusal(served: Served) -> None:
    async with AsyncOpenAI(base_url=served.gateway.base_url, api_key=served.key, max_retries=0) as sdk:
        with pytest.raises(UnprocessableEntityError):
            await sdk.chat.completions.create(
                model=TINY, messages=_PROMPT, extra_body={"no_such_parameter": 1}
            )
