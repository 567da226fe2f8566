"""What several tests say to the gateway and read from it."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.integration.conftest import MODEL, Site
from tests.support.processes import Gateway

CHAT = "/v1/chat/completions"


def chat(**more: object) -> dict[str, object]:
    """A chat request; ``script`` among ``more`` says what the engine does."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | more


@dataclass(kw_only=True)
class HeardStream:
    """What a client has read of a streamed chat."""

    text: str = ""
    error: str = ""
    done: bool = False
    """The stream has ended as one does."""

    async def read(self, response: aiohttp.ClientResponse) -> None:
        """Read it to its end."""
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                self.error = self.error or str(chunk.get("error", ""))
                for choice in chunk.get("choices", ()):
                    self.text += choice["delta"].get("content") or ""
            elif line.startswith(b"data: [DONE]"):
                self.done = True


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The error object of a response in OpenAI's shape."""
    body = json.loads(await response.read())
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return dict(body["error"])


async def ask_at_once(site: Site, count: int, text: str = "hi", tokens_per_s: float = 60.0) -> None:
    """So many streamed chats at the same time, each answered with 12 tokens."""
    headers = {"authorization": f"Bearer {site.key}"}
    async with aiohttp.ClientSession(site.gateway.url, headers=headers) as client:

        async def ask() -> None:
            messages = [{"role": "user", "content": text}]
            body = chat(messages=messages, max_tokens=12, stream=True, script={"tokens_per_s": tokens_per_s})
            async with client.post(CHAT, json=body) as response:
                assert response.status == 200
                await response.read()

        await asyncio.gather(*(ask() for _ in range(count)))


def logged_answers(gateway: Gateway) -> int:
    """How many requests for models are in the gateway's audit log."""
    return sum(each.read_text().count('"model":') for each in (gateway.state / "audit").glob("*.jsonl"))
