"""Waiting for a line of the log."""

import asyncio
from typing import Any


async def until(logs: list[Any], event: str) -> Any:
    """The first line of ``event``, once it is there; ``logs`` are of ``structlog.testing.capture_logs``."""
    while not (found := [each for each in logs if each["event"] == event]):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return found[0]
