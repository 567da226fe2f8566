"""Which engines fit into the host's memory for models together. Pure arithmetic over what is loaded."""

from collections.abc import Callable, Iterable
from typing import Protocol

from agent.engines.backend import BackendRefused
from agent.engines.managed import LoadAttempt

GIB = 1024**3


class MemoryUser(Protocol):
    """An engine that takes memory while it is wanted."""

    name: str
    loading: LoadAttempt

    @property
    def wanted(self) -> bool:
        """It has its memory, or is about to take it."""


class ModelMemory:
    """``total_bytes`` tells what there is for models; None: no bound is known, and everything fits."""

    def __init__(self, total_bytes: Callable[[], int | None] = lambda: None) -> None:
        self._total_bytes = total_bytes

    def need_bytes(self, engine: MemoryUser) -> int | None:
        """What ``engine`` takes; if unknown, all there is, as vLLM and SGLang take by default."""
        return engine.loading.memory_bytes or self._total_bytes()

    def for_managed_bytes(self, engines: Iterable[MemoryUser]) -> int | None:
        """The memory that engines which are never unloaded leave to managed ones."""
        total = self._total_bytes()
        if total is None:
            return None
        pinned = sum(self.need_bytes(e) or 0 for e in engines if e.wanted and not e.loading.managed)
        return max(1, total - pinned)

    def check(self, engine: MemoryUser, engines: Iterable[MemoryUser]) -> None:
        """Raises :class:`BackendRefused` when ``engine`` does not fit beside those wanted of ``engines``."""
        total, need = self._total_bytes(), self.need_bytes(engine)
        if total is None or need is None:
            return
        beside = [other for other in engines if other.wanted and other is not engine]
        taken = sum(self.need_bytes(other) or 0 for other in beside)
        if taken + need > total:
            names = ", ".join(other.name for other in beside)
            raise BackendRefused(
                f"it needs {need / GIB:.1f} GiB of {total / GIB:.1f} GiB for models"
                + (f", {taken / GIB:.1f} GiB of which are taken by {names}" if beside else "")
            )
