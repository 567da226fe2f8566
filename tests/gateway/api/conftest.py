"""The HTTP surface with fakes behind it, over raw ASGI or served at an address."""

import ssl
from collections.abc import AsyncIterator
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.gateway.api.support import KEY, Surface, served

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@pytest.fixture
async def surface() -> Surface:
    return Surface()


@pytest.fixture
async def address(surface: Surface) -> AsyncIterator[str]:
    async with served(surface) as where:
        yield where


@pytest.fixture
async def sdk(address: str) -> "AsyncIterator[AsyncOpenAI]":
    """OpenAI's SDK, at the surface's address."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    async with AsyncOpenAI(
        base_url=f"http://{address}/v1",
        api_key=KEY,
        max_retries=0,
        http_client=DefaultAsyncHttpxClient(verify=_tls()),
    ) as client:
        yield client


@cache
def _tls() -> ssl.SSLContext:
    """The SDK makes one for each of its clients otherwise, which reads all authorities of the system."""
    return ssl.create_default_context()
