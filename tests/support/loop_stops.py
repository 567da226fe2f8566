"""How long an event loop stops for one thing: the processor's time of its longest callback."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class LoopStops:
    """The longest callback since ``longest_s`` was set to 0. Of asyncio's own loop, not of uvloop's."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.whose = ""

    @contextmanager
    def measured(self) -> Iterator[None]:
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began_s = time.thread_time()
            run(handle)
            took_s = time.thread_time() - began_s
            if took_s > self.longest_s:
                self.longest_s, self.whose = took_s, repr(handle)

        asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]
