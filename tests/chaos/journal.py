"""What really happened when: the faults of a run with their times, and who was away."""

from dataclasses import dataclass, field

from tests.chaos.schedule import AGENT_KINDS, EVERYBODY, GATEWAY_KINDS, WORKER_KINDS, Fault, Kind
from tests.chaos.town import Town

RECOVERY_S = {"engine": 6.0, "agent": 8.0, "demo": 25.0, "gateway": 5.0}
"""How long after its end a fault still counts: a process starts, a circuit closes, an agent dials."""
_FOREVER = float("inf")


@dataclass(slots=True)
class Entry:
    """One fault as it went; ``until_s`` is infinite while it lasts."""

    fault: Fault
    began_s: float
    until_s: float = _FOREVER

    def overlaps(self, from_s: float, until_s: float, margin_s: float = 0.0) -> bool:
        return self.began_s <= until_s and from_s <= self.until_s + margin_s

    def __str__(self) -> str:
        end = "…" if self.until_s == _FOREVER else f"{self.until_s:.2f}"
        return f"{self.fault.kind} {self.fault.target} {self.began_s:.2f}–{end}"


@dataclass(slots=True)
class Journal:
    """Times are seconds since the start of the run."""

    town: Town
    entries: list[Entry] = field(default_factory=list)

    def begin(self, fault: Fault, now_s: float) -> Entry:
        entry = Entry(fault, now_s)
        self.entries.append(entry)
        return entry

    def active(self, from_s: float, until_s: float, margin_s: float = 5.0) -> list[Entry]:
        """The faults that touched that time, or ended not long before."""
        return [entry for entry in self.entries if entry.overlaps(from_s, until_s, margin_s)]

    def touching(self, model: str, from_s: float, until_s: float) -> list[Entry]:
        """Of those, the ones that touched deployments of ``model``."""
        return [entry for entry in self.active(from_s, until_s) if self.concerns(entry.fault, model)]

    def concerns(self, fault: Fault, model: str) -> bool:
        names = {post.name for post in self.town.of_model(model)}
        return fault.kind in GATEWAY_KINDS or fault.target in {*names, model, EVERYBODY}

    def gateway_restarts(self, from_s: float, until_s: float) -> bool:
        """Whether the gateway was away, or had just come back, in that time."""
        return any(
            entry.fault.kind in GATEWAY_KINDS and entry.overlaps(from_s, until_s, RECOVERY_S["gateway"])
            for entry in self.entries
        )

    def somebody_was_there_throughout(self, model: str, route: str, from_s: float, until_s: float) -> bool:
        """Whether some deployment of ``model`` with ``route`` was healthy at every moment of that time."""
        away = [self._away(post.name) for post in self.town.of_model(model) if post.has(route)]
        moments = {from_s, until_s}
        for intervals in away:
            moments |= {
                time_s for interval in intervals for time_s in interval if from_s <= time_s <= until_s
            }
        return all(
            any(not any(begin <= moment < end for begin, end in intervals) for intervals in away)
            for moment in moments
        )

    def _away(self, name: str) -> list[tuple[float, float]]:
        """When that agent's deployment could not be counted on."""
        post = self.town.by_name[name]
        intervals = []
        for entry in self.entries:
            kind = entry.fault.kind
            struck = entry.fault.target == (post.model if kind is Kind.BLACKOUT else name)
            if struck and kind in (*WORKER_KINDS, Kind.BLACKOUT):
                part = "demo" if post.is_demo else "agent" if kind in AGENT_KINDS else "engine"
                intervals.append((entry.began_s, entry.until_s + RECOVERY_S[part]))
        return intervals
