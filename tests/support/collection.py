"""Garbage collection where time is measured, in a process that may hold all tests there are."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """None inside: one takes as long as the process is large, which is not what is measured.

    What was not looked at for garbage before is not afterwards either: to look at all tests that were
    collected takes a second each time.
    """
    frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if not frozen:
            gc.unfreeze()
