"""The event loop that the programs run on."""

import asyncio
from collections.abc import Callable


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes uvloop's event loops where there are any, else asyncio's own."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
