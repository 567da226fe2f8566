"""The demo model: the same streamed or not, for the SDK, and where its agent is lost in the middle.

All that ask it are in this file, and so in one process: to start it takes as long as they do."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from agent.engines import torch as torch_engine
from tests.integration.asking import CHAT, HeardStream
from tests.integration.conftest import DEMO, Site
from tests.support.processes import fetch, until
from tests.support.proxy import FaultyProxy
from tests.support.proxy.link import Link

LONG_TOKENS = 40
QUESTIONS = 6
SLOW = Link(rate_bytes_per_s=3000.0, buffer_bytes=8192)
"""An answer takes some seconds through it, while the engine makes it in less than one."""


def client_of(site: Site) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(site.gateway.url, headers={"authorization": f"Bearer {site.key}"})


def recorded() -> list[dict[str, Any]]:
    """Questions with long answers, and the answers."""
    path = Path(torch_engine.__file__).parent / "demo" / "answers.json"
    return [each for each in json.loads(path.read_text("utf-8")) if each["tokens"] > LONG_TOKENS][:QUESTIONS]


class Asked:
    """One streamed answer as it comes."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.question = question
        self.agent = ""
        self.pieces: list[str] = []
        self.finish: str | None = None
        self.ids: set[str] = set()
        self.usage: dict[str, int] = {}
        self.done = False

    async def ask(self, client: aiohttp.ClientSession) -> None:
        body = {
            "model": DEMO,
            "messages": self.question["messages"],
            "stream": True,
            "temperature": 0,
            "stream_options": {"include_usage": True},
        }
        async with client.post(CHAT, json=body) as response:
            assert response.status == 200
            self.agent = response.headers["x-trunkline-agent"]
            async for line in response.content:
                if line.startswith(b"data: {"):
                    self._take(json.loads(line[6:]))
                elif line.startswith(b"data: [DONE]"):
                    self.done = True

    def _take(self, chunk: dict[str, Any]) -> None:
        assert "error" not in chunk, chunk
        self.ids.add(chunk["id"])
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            self.pieces.append(choice["delta"].get("content") or "")
            self.finish = choice["finish_reason"] or self.finish


async def test_the_demo_model_answers_the_same_streamed_or_not(demo_site: Site) -> None:
    body = {"model": DEMO, "messages": [{"role": "user", "content": "What is Trunkline?"}], "max_tokens": 40}
    plain = await asyncio.to_thread(
        fetch, f"{demo_site.base_url}/chat/completions", body=body, key=demo_site.key, timeout_s=60
    )
    heard = HeardStream()
    async with client_of(demo_site) as session:
        await heard.read(await session.post(CHAT, json=body | {"stream": True}))
    assert plain["choices"][0]["message"]["content"] == heard.text
    assert len(heard.text.split()) > 3


async def test_the_demo_model_streams_to_the_sdk(demo_site: Site) -> None:
    question: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "What is an agent?"}]
    async with AsyncOpenAI(base_url=demo_site.base_url, api_key=demo_site.key) as client:
        stream = await client.chat.completions.create(
            model=DEMO, messages=question, max_tokens=30, temperature=0, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        vectors = await client.embeddings.create(model=DEMO, input=["an agent", "a gateway"])
    assert len(text.split()) > 3
    assert len(vectors.data) == 2
    assert len(vectors.data[0].embedding) == len(vectors.data[1].embedding) > 0


@pytest.mark.slow
async def test_the_demo_models_answers_survive_the_death_of_their_agent(demo_site: Site) -> None:
    house, gateway = demo_site.house, demo_site.gateway
    async with FaultyProxy("127.0.0.1", gateway.port, SLOW) as proxy:
        mortal = house.agent(gateway, "torch:demo", name="mortal-demo", dial=proxy.url)
        async with asyncio.timeout(180), client_of(demo_site) as client:
            said = mortal.log
            await asyncio.to_thread(until, "it serves", lambda: "engine serves" in said.read_text(), 90.0)
            while not await _serves(client, "mortal-demo"):
                continue
            asked = [Asked(question) for question in recorded()]
            async with asyncio.TaskGroup() as tasks:
                for each in asked:
                    tasks.create_task(each.ask(client))
                await asyncio.to_thread(until, "an answer is under way", lambda: _under_way(asked), 60.0)
                begun = [each for each in asked if each.agent == "mortal-demo" and not each.done]
                os.killpg(mortal.pid, signal.SIGKILL)
            house.children.stop(mortal)
            assert begun, "an answer was under way"
            for each in asked:
                assert "".join(each.pieces) == each.question["answer"]
                assert (each.finish, each.done, len(each.ids)) == ("stop", True, 1)
                # The engine counts the end of the answer too; what was cut off after its last word has none.
                assert each.usage["completion_tokens"] - each.question["tokens"] in (0, 1)


def _under_way(asked: list[Asked]) -> bool:
    return any(each.agent == "mortal-demo" and len(each.pieces) > 5 for each in asked)


async def _serves(client: aiohttp.ClientSession, agent: str) -> bool:
    """Whether a short request lands at ``agent`` among a few at once."""

    async def lands() -> str:
        body = {"model": DEMO, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        async with client.post(CHAT, json=body) as response:
            return response.headers.get("x-trunkline-agent", "")

    return agent in await asyncio.gather(*(lands() for _ in range(4)))
