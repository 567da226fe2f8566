"""A started backend for an engine with HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent.engines.http.openai import EngineSettings, OpenAIHTTPBackend


@asynccontextmanager
async def backend(url: str, slots: int | None = None) -> AsyncIterator[OpenAIHTTPBackend]:
    """The backend of the engine ``e`` at ``url``, which is looked at once only; closed after the block."""
    made = OpenAIHTTPBackend(EngineSettings(url=url, name="e", slots=slots, refresh_s=3600))
    await made.start()
    try:
        yield made
    finally:
        await made.close()
