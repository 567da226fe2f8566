"""When a crashed engine is started again. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """How an engine ended. ``hopeless``: started again it would end the same way."""

    reason: str
    hopeless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a crashed engine is started again."""

    most: int = 5
    """Crashes in a row after which there is little hope for one that never came to serve: it is tried
    ``rarely_s`` apart."""
    first_s: float = 1.0
    longest_s: float = 30.0
    rarely_s: float = 300.0
    healthy_s: float = 20.0
    """An engine that served for so long begins a new row."""

    def hopeless(self, crashes: int, *, served: bool) -> bool:
        """There is little hope after ``crashes`` in a row; ``served``: it could serve before the last."""
        return crashes > self.most and not served

    def delay_s(self, crashes: int, *, served: bool) -> float:
        """How long to wait after the ``crashes``-th crash in a row, from 1."""
        if self.hopeless(crashes, served=served):
            return self.rarely_s
        return min(self.longest_s, self.first_s * 2.0 ** min(crashes - 1, 30))
