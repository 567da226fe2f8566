"""What must hold in a run with several gateways, and what did not. Pure."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.chaos.checks import Verdict
from tests.chaos.many.house import RPM
from tests.chaos.many.load import ClientOutcome, ShortAsk
from tests.chaos.many.plan import KILLS, Strike
from tests.chaos.many.strikes import StruckEntry

WHOLE_S = 12.0
"""So long after the end of a fault everything is there again: a process has started, agents have dialled. On
a machine that has other work, as much longer as everything takes there."""

LOST_USAGE_S = 1.5
"""Before a gateway was killed: what ended in it since may not be in the store. A second, and some for the
clock of the client, which sees ends earlier than the gateway books them."""

LATE_S = 30.0
"""So much later than undisturbed an answer may end."""

STORE_BACK_S = 5.0
"""So long after it could not a gateway may still not have written."""

_MINUTE_S = 60.0
_TAKES_STORE_AWAY = (Strike.STORE_KILL, Strike.STORE_PAUSE, Strike.PART_STORE)
_ENDED = (Verdict.RIGHT, Verdict.LEFT)
_TAKES_REDIS_AWAY = (Strike.SHARED_KILL, Strike.SHARED_PAUSE, Strike.PART_SHARED, Strike.SHARED_FLUSH)


@dataclass(slots=True)
class ManyFindings:
    """What a run has shown."""

    entries: Sequence[StruckEntry]
    gateways: int = 1
    workers: int = 1
    """Of each gateway."""
    outcomes: Sequence[ClientOutcome] = ()
    limited: Sequence[ShortAsk] = ()
    probes: Sequence[ShortAsk] = ()
    wrong: list[str] = field(default_factory=list)
    """What did not hold, in words."""
    usage: tuple[int, int] = (0, 0)
    """Requests and tokens of the plain key's in the store, in the end."""
    slowness: Callable[[float, float], float] = lambda from_s, until_s: 1.0
    """How much longer everything took between two times because the machine had other work
    (:mod:`tests.support.run_queue`)."""
    peaks: dict[str, int] = field(default_factory=dict)
    """The most requests at once that each engine has had for more than a moment."""

    @property
    def processes(self) -> int:
        """Those that have the limits together."""
        return self.gateways * self.workers

    def verdicts(self) -> Counter[str]:
        """How many requests came to which end."""
        return Counter(str(each.outcome.finding.verdict) for each in self.outcomes)

    # --- answers

    def judge_answers(self) -> None:
        """Each is whole, or ends with an error because its own gateway was killed."""
        for each in self.outcomes:
            outcome = each.outcome
            verdict, ask = outcome.finding.verdict, outcome.ask
            if verdict in _ENDED:
                if outcome.ended_s - outcome.began_s > ask.lasts_s + LATE_S + 5.0:
                    self.wrong.append(f"late: g{each.gateway} {outcome}")
                continue
            killed = self._killed(each.gateway, outcome.began_s, outcome.ended_s)
            if verdict is Verdict.ERROR and killed and outcome.failure is not None:
                continue
            self.wrong.append(
                f"g{each.gateway} {outcome}; faults: {self._faults(outcome.began_s, outcome.ended_s)}"
            )
        for probe in self.probes:
            if probe.status == 200 or (
                probe.status == 0 and self._killed(probe.gateway, probe.began_s, probe.answered_s)
            ):
                continue
            self.wrong.append(
                f"a known key: {probe}; faults: {self._faults(probe.began_s, probe.answered_s)}"
            )

    def _killed(self, gateway: int, from_s: float, until_s: float) -> bool:
        return any(
            entry.struck.kind in KILLS
            and entry.struck.gateway == gateway
            and entry.overlaps(from_s, until_s, 0.5)
            for entry in self.entries
        )

    def _faults(self, from_s: float, until_s: float) -> str:
        found = [str(entry) for entry in self.entries if entry.overlaps(from_s, until_s, 5.0)]
        return "; ".join(found) or "none"

    # --- limits

    def judge_limit(self) -> None:
        """Never more than the limit in any minute, with each request taken to have been admitted when that
        suits the gateways best. Where a gateway could not see what others used, its share beside it."""
        admitted = sorted(
            (each for each in self.limited if each.status == 200), key=lambda each: each.began_s
        )
        for each in self.limited:
            killed = self._killed(each.gateway, each.began_s, each.answered_s)
            if each.status not in (200, 429) and not killed:
                self.wrong.append(f"limited: {each}; faults: {self._faults(each.began_s, each.answered_s)}")
        most = self.most_in_a_minute(admitted)
        if most > self.allowed:
            self.wrong.append(f"{most} requests admitted in a minute, allowed {self.allowed}")
        if len(admitted) < RPM // 2:
            self.wrong.append(f"of a limit of {RPM} only {len(admitted)} requests were admitted")

    @staticmethod
    def most_in_a_minute(admitted: Sequence[ShortAsk]) -> int:
        """That were surely admitted within one."""
        return max(
            (
                sum(
                    first.began_s <= each.began_s and each.answered_s <= first.began_s + _MINUTE_S
                    for each in admitted
                )
                for first in admitted
            ),
            default=0,
        )

    @property
    def allowed(self) -> int:
        """In a minute. While Redis is away for a process, that one takes no more than its share of the limit,
        with what it has used before. So beside what one process has leased alone, all others may take their
        shares. One that was killed has forgotten what it used, and so may Redis have: each that was killed
        within the minute or the one before counts once more."""
        if not any(entry.struck.kind in _TAKES_REDIS_AWAY for entry in self.entries):
            return RPM
        share = -(-RPM // self.processes)
        return RPM + share * (self.processes - 1 + self._killed_processes())

    def _killed_processes(self) -> int:
        """The most within two minutes."""
        kills = [
            entry for entry in self.entries if entry.struck.kind in (Strike.GATEWAY_KILL, Strike.WORKER_KILL)
        ]
        return max(
            (
                sum(
                    self.workers if entry.struck.kind is Strike.GATEWAY_KILL else 1
                    for entry in kills
                    if 0.0 <= entry.began_s - first.began_s <= 2 * _MINUTE_S
                )
                for first in kills
            ),
            default=0,
        )

    # --- slots, usage, time

    def judge_slots(self, slots: int) -> None:
        """No engine has ever had more requests than its slots."""
        for name, peak in self.peaks.items():
            if peak > slots:
                self.wrong.append(f"the engine of {name} had {peak} requests at once and has {slots} slots")

    def judge_usage(self) -> None:
        """All that ended in a gateway that lived on for a second is in the store, and nothing twice."""
        kills = [(each, self._unwritten_from_s(each)) for each in self.entries if each.struck.kind in KILLS]
        kept = [each.outcome for each in self.outcomes if _is_kept(each, kills)]
        tokens = sum(each.ask.tokens * len(each.ask.texts) for each in kept)
        asked = sum(each.outcome.ask.tokens * len(each.outcome.ask.texts) for each in self.outcomes)
        requests, counted = self.usage
        if not len(kept) <= requests <= len(self.outcomes):
            self.wrong.append(
                f"{requests} requests in the store; {len(kept)} to {len(self.outcomes)} expected"
            )
        if not tokens <= counted <= asked:
            self.wrong.append(f"{counted} tokens in the store; {tokens} to {asked} expected")

    def _unwritten_from_s(self, kill: StruckEntry) -> float:
        """A gateway that is killed while it cannot reach its store has written nothing since it could."""
        from_s = kill.began_s
        for entry in sorted(self.entries, key=lambda each: each.began_s, reverse=True):
            struck = entry.struck
            its = struck.kind in _TAKES_STORE_AWAY and struck.gateway in (-1, kill.struck.gateway)
            if its and entry.overlaps(from_s, from_s, STORE_BACK_S):
                from_s = min(from_s, entry.began_s)
        return from_s - LOST_USAGE_S * self.slowness(from_s - LOST_USAGE_S, from_s)

    def judge_times(self) -> None:
        """After each fault everything was there again in time. What another fault struck meanwhile has until
        that is over."""
        for entry in self.entries:
            last_s = entry.until_s
            for other in self.entries:
                if other.began_s <= last_s + WHOLE_S and other.until_s > last_s:
                    last_s = max(last_s, min(other.until_s, entry.whole_s))
            slowness = self.slowness(last_s, entry.whole_s)
            if entry.whole_s - last_s > WHOLE_S * slowness:
                self.wrong.append(f"not whole within {WHOLE_S:.0f} s (× {slowness:.1f}): {entry}")


def _is_kept(each: ClientOutcome, kills: Sequence[tuple[StruckEntry, float]]) -> bool:
    """Whether its usage must be in the store. ``kills`` of gateways come with when each had last written."""
    ended_s = each.outcome.ended_s
    return each.outcome.finding.verdict is Verdict.RIGHT and not any(
        kill.struck.gateway == each.gateway and unwritten_s <= ended_s <= kill.until_s
        for kill, unwritten_s in kills
    )
