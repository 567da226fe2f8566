"""The object store of files and jobs, opened when it is needed first."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # its library is loaded at the first use
    from gateway.storage.objects import ObjectStore


class ObjectOpener:
    """One for all who use the same store. Belongs to the event loop's thread."""

    def __init__(self, open_objects: "Callable[[], ObjectStore]") -> None:
        """``open_objects`` is called once, in another thread; it raises StateError."""
        self._open_objects = open_objects
        self._opening = asyncio.Lock()
        self._opened: ObjectStore | None = None

    async def __call__(self) -> "ObjectStore":
        """Raises StateError; the next call tries again."""
        if self._opened is None:
            async with self._opening:
                if self._opened is None:
                    self._opened = await asyncio.to_thread(self._open_objects)
        return self._opened
