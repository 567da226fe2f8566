"""How far the loading of a model is, told on standard output line by line."""

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import orjson

IMPORTING = "importing PyTorch"
READING = "reading the weights"
PREPARING = "preparing to compute"

EVERY_S = 0.5
"""How often the share of the weights that are read is told."""


class LoadProgress:
    """``say`` takes each line."""

    def __init__(self, say: Callable[[bytes], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._told_s = 0.0

    def at(self, step: str, share: float | None = None) -> None:
        """Loading is at ``step`` now, of which ``share`` (0 to 1) is done."""
        self._told_s = self._clock()
        told = {"loading": {"step": step, "progress": None if share is None else round(share, 3)}}
        self._say(orjson.dumps(told) + b"\n")

    def counted(self, items: Iterable[Any], total: int | None) -> Iterator[Any]:
        """``items``, while the share of ``total`` that was taken is told now and then."""
        for done, item in enumerate(items):
            if total and self._clock() - self._told_s >= EVERY_S:
                self.at(READING, done / total)
            yield item

    def bar(self, factory: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Stands in for the progress bars of transformers (``transformers.utils.logging.set_tqdm_hook``)."""
        items = arguments[0] if arguments else settings.get("iterable")
        if items is None:
            return factory(*arguments, **settings)
        total = settings.get("total") or (len(items) if isinstance(items, Sized) else None)
        return self.counted(items, total)
