"""Each fault alone, a few times, under light load: what a client sees of it, measured."""

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from tests.chaos.asks import Ask, Behaviour, Special, draw_ask
from tests.chaos.checks import Verdict
from tests.chaos.faults import Injector
from tests.chaos.house import ChaosHouse
from tests.chaos.journal import Entry, Journal
from tests.chaos.load import Load
from tests.chaos.oracle import Oracle
from tests.chaos.outcome import Outcome
from tests.chaos.schedule import GATEWAY, GATEWAY_KINDS, STATE_KINDS, Fault, Kind
from tests.chaos.town import Town, build_town

RATE_PER_S = 12.0
_TOKENS, _TOKENS_PER_S = 60, 30.0
"""Two seconds an answer, so that a fault meets some twenty of them."""
_TARGET, _MODEL = "alpha-1", "alpha"
_LASTS_S = {
    Kind.LINK_DELAY: (3.0, 0.1),
    Kind.LINK_NARROW: (3.0, 50e3),
    Kind.LINK_STALL: (4.0, 0.0),
    Kind.LINK_CUT: (0.0, 700),
    Kind.LINK_TRUNCATE: (0.0, 700),
    Kind.AGENT_KILL: (2.0, 0.0),
    Kind.AGENT_DRAIN: (2.0, 0.0),
}
_ENGINE_S = 5.0
_AFTERWARDS_S = 12.0
"""From the end of one fault to the next."""
_NAMES: dict[Kind, str] = {Kind.BLACKOUT: _MODEL}


@dataclass(slots=True)
class Row:
    """What one kind of fault did."""

    kind: str
    verdicts: Counter[str] = field(default_factory=Counter)
    pauses_s: list[float] = field(default_factory=list)
    """The longest pause of each right stream."""
    late_s: list[float] = field(default_factory=list)
    """How much longer than undisturbed each right answer took."""

    def __str__(self) -> str:
        pauses = sorted(self.pauses_s) or [0.0]
        late = max(self.late_s, default=0.0)
        right = self.verdicts["right"]
        others = ", ".join(
            f"{name} {count}" for name, count in self.verdicts.most_common() if name != "right"
        )
        return (
            f"| {self.kind} | {self.verdicts.total()} | {right} | {statistics.median(pauses) * 1000:.0f} | "
            f"{pauses[-1] * 1000:.0f} | {late * 1000:.0f} | {others or '–'} |"
        )


HEAD = (
    "| fault | requests touched | right | longest pause, median (ms) | longest pause, worst (ms) "
    "| answer late by at most (ms) | anything else |\n| --- | --- | --- | --- | --- | --- | --- |"
)


def draw_plain(town: Town, seed: int, number: int, *, special: bool = False) -> Ask:
    """A request of the table: all alike but for route and model; one in ten cannot be continued if wanted."""
    ask = draw_ask(town, seed, number)
    keep = special and number % 10 == 0
    return replace(
        ask,
        behaviour=Behaviour.PLAIN,
        special=(ask.special or Special.SEVERAL) if keep else Special.NONE,
        route="chat" if keep else ask.route,
        stream=ask.stream or keep,
        stopped=ask.stopped and not keep,
        sdk=False,
        tokens=_TOKENS,
        tokens_per_s=_TOKENS_PER_S,
        pad_bytes=0,
        model=_MODEL,
    )


async def measure(
    kinds: Sequence[Kind], times: int, seed: int, directory: Path, say: Callable[[str], None]
) -> list[Row]:
    """One row for each kind, and one for no fault at all."""
    town = build_town(demo=False)
    async with ChaosHouse(directory, town) as house:
        began_s = monotonic()

        def clock() -> float:
            return monotonic() - began_s

        journal = Journal(town)
        injector = Injector(house, journal, clock)
        outcomes: list[Outcome] = []
        load = Load(
            house,
            seed,
            clock,
            outcomes.append,
            lambda: injector.gateway_away,
            draw=lambda number: draw_plain(town, seed, number),
        )
        rows = []
        async with load:
            sending = asyncio.create_task(load.run(RATE_PER_S, 1e9))
            await asyncio.sleep(5.0)
            rows.append(
                _row("none", outcomes, [Entry(Fault(0, Kind.LINK_DELAY, "*"), 0, 5)], Oracle(journal))
            )
            for kind in kinds:
                entries = []
                for _ in range(times):
                    entries.append(await _once(kind, injector, journal, clock))
                    await asyncio.sleep(_AFTERWARDS_S)
                    await house.until("everything is served", house.everything_is_served)
                await load.until_idle(40.0)
                rows.append(_row(str(kind), outcomes, entries, Oracle(journal)))
                say(str(rows[-1]))
                outcomes.clear()
            sending.cancel()
        return rows


async def _once(kind: Kind, injector: Injector, journal: Journal, clock: Callable[[], float]) -> Entry:
    lasts_s, amount = _LASTS_S.get(kind, (_ENGINE_S if not kind.startswith("link:") else 0.0, 0.0))
    target = GATEWAY if kind in (*GATEWAY_KINDS, *STATE_KINDS) else _NAMES.get(kind, _TARGET)
    await injector.strike(Fault(clock(), kind, target, 0.5 if target == GATEWAY else lasts_s, amount))
    return journal.entries[-1]


def _row(name: str, outcomes: Sequence[Outcome], entries: Sequence[Entry], oracle: Oracle) -> Row:
    row = Row(name)
    for outcome in outcomes:
        if not any(_touched(outcome, entry) for entry in entries):
            continue
        if outcome.finding.verdict is not Verdict.RIGHT:
            row.verdicts[_named(outcome, oracle)] += 1
            continue
        row.verdicts["right"] += 1
        row.late_s.append(outcome.ended_s - outcome.began_s - _TOKENS / _TOKENS_PER_S)
        if outcome.ask.stream:
            row.pauses_s.append(outcome.pause_s)
    return row


def _touched(outcome: Outcome, entry: Entry) -> bool:
    """Whether the request was there when the fault was, at the agent that it struck or moved from it."""
    if not entry.overlaps(outcome.began_s, outcome.ended_s):
        return False
    everybody = entry.fault.target in ("*", GATEWAY, _MODEL)
    return everybody or outcome.agent in ("", entry.fault.target) or outcome.attempts not in ("", "1")


def _named(outcome: Outcome, oracle: Oracle) -> str:
    if outcome.failure is None:
        return str(outcome.finding.verdict)
    ruling = oracle.rule(outcome.ask, outcome.failure, outcome.began_s, outcome.ended_s)
    return f"{outcome.failure} ({ruling})"
