"""What the tests about faults say to the gateway and read from it."""

import json
from typing import Any

import aiohttp

from tests.integration.conftest import MODEL

CHAT = "/v1/chat/completions"


def chat(**more: object) -> dict[str, object]:
    """A chat request; ``script`` among ``more`` says what the engine does."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | more


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The error object of a response in OpenAI's shape."""
    body = json.loads(await response.read())
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return dict(body["error"])
