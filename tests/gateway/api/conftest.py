"""The HTTP surface with fakes behind it, over raw ASGI or served at an address."""

from collections.abc import AsyncIterator

import pytest

from tests.gateway.api.support import Surface, served


@pytest.fixture
async def surface() -> Surface:
    return Surface()


@pytest.fixture
async def address(surface: Surface) -> AsyncIterator[str]:
    async with served(surface) as where:
        yield where
