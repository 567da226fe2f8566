"""Which fault strikes whom and when: drawn from the seed alone."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import cycle, pairwise
from random import Random

from tests.chaos.town import Town

EVERYBODY = "*"
"""The target of a fault that hits all links at once."""
GATEWAY = "gateway"


class Kind(StrEnum):
    """What can go wrong. The values are what reports and tables call it."""

    LINK_CUT = "link: cut"
    LINK_DELAY = "link: delay"
    LINK_NARROW = "link: narrow"
    LINK_STALL = "link: stall"
    LINK_TRUNCATE = "link: truncated and closed"
    LINK_CORRUPT = "link: corrupted byte"
    LINK_HALF_AGENT = "link: half-open, gateway told"
    LINK_HALF_GATEWAY = "link: half-open, agent told"
    LINK_VANISH = "link: half-open, nobody told"
    AGENT_KILL = "agent: killed"
    AGENT_DRAIN = "agent: drained"
    ENGINE_ERROR = "engine: 500"
    ENGINE_MEMORY = "engine: out of memory"
    ENGINE_BUSY = "engine: 503"
    ENGINE_HANG = "engine: hangs before the head"
    ENGINE_STALL = "engine: stalls"
    ENGINE_CUT = "engine: closes mid-stream"
    ENGINE_UNENDED = "engine: ends without its end"
    ENGINE_MALFORMED = "engine: malformed"
    ENGINE_UNWELL = "engine: unwell, answers no request"
    ENGINE_SILENT = "engine: answers nothing at all"
    ENGINE_REFUSE = "engine: refuses"
    ENGINE_FREEZE = "engine: frozen"
    GATEWAY_DRAIN = "gateway: drained and restarted"
    GATEWAY_KILL = "gateway: killed and restarted"
    GATEWAY_SECOND = "gateway: a second one on its state"
    STATE_DELETED = "gateway: its database deleted"
    BLACKOUT = "all engines of a model refuse"


ENGINE_KINDS = tuple(kind for kind in Kind if kind.startswith("engine:"))
AGENT_KINDS = (Kind.AGENT_KILL, Kind.AGENT_DRAIN)
GATEWAY_KINDS = (Kind.GATEWAY_DRAIN, Kind.GATEWAY_KILL)
"""What takes the gateway away. The end of a deletion is a drain, and is in the journal as such."""
STATE_KINDS = (Kind.GATEWAY_SECOND, Kind.STATE_DELETED)
"""What happens to the gateway's state and no request may feel."""
WORKER_KINDS = (*AGENT_KINDS, *ENGINE_KINDS)
"""What takes a deployment away."""
LINK_KINDS = tuple(kind for kind in Kind if kind.startswith("link:"))
SILENT_KINDS = (Kind.LINK_STALL, Kind.LINK_HALF_AGENT, Kind.LINK_HALF_GATEWAY, Kind.LINK_VANISH)
"""Faults of a link after which its agent may be taken for lost."""

SETTLE_S = {"engine": 12.0, "agent": 15.0, "demo": 30.0}
"""How long after a worker's fault it is not yet counted on: circuits stay open a while, processes start."""
_FREEZE_S, _LONG_S = 25.0, 90.0
"""In runs that are long enough engines are frozen until their agents must have declared them lost."""
LOSS_KINDS = (Kind.ENGINE_UNWELL, Kind.ENGINE_SILENT, Kind.ENGINE_FREEZE)
"""The engine takes requests and answers none, and its agent finds that it is lost."""
LOSS_S = 75.0
"""So long such a fault lasts now and then in long runs: longer than any request may be late
(:data:`tests.chaos.oracle.LATE_S`)."""
_LOSS_FROM, _LOSS_EVERY_S = 0.5, 240.0
"""The first in the second half, when the gateway stays; not before another engine of its model is there."""
_QUIET_BEGIN_S = 3.0
_CUT_EVERY_S = 0.8
_CUT_SPREAD_S = 0.2
"""Together the longest time between two cuts."""
_BLACKOUT_EVERY_S = 150.0
_GATEWAY_EVERY_S = 120.0
_SECOND_AFTER_S = 30.0
_GATEWAY_AWAY_S = 25.0
"""Nobody else is taken away while the gateway comes back."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``at_s`` counts from the start of the run; ``amount`` is what its kind makes of it."""

    at_s: float
    kind: Kind
    target: str
    """An agent's name, a model's (blackout), GATEWAY or EVERYBODY."""
    lasts_s: float = 0.0
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """All faults of a run, in the order of their time."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]

    @property
    def digest(self) -> str:
        """The same for the same faults at the same times."""
        text = json.dumps([asdict(fault) for fault in self.faults], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def longest_gap_s(self) -> float:
        """The longest time in which no fault began."""
        times = [_QUIET_BEGIN_S, *(fault.at_s for fault in self.faults), self.seconds]
        return max(after - before for before, after in pairwise(times))


@dataclass(slots=True)
class _Draft:
    """A schedule being drawn: who is away until when, so that every model keeps somebody."""

    town: Town
    seed: int
    random: Random
    seconds: float
    witness: str
    faults: list[Fault] = field(default_factory=list)
    away_until_s: dict[str, float] = field(default_factory=dict)

    def add(self, at_s: float, kind: Kind, target: str, lasts_s: float = 0.0, amount: float = 0.0) -> None:
        self.faults.append(Fault(round(at_s, 3), kind, target, round(lasts_s, 3), round(amount, 4)))

    def present(self, model: str, at_s: float) -> list[str]:
        posts = self.town.of_model(model)
        return [post.name for post in posts if self.away_until_s.get(post.name, 0.0) <= at_s]

    def spare(self, at_s: float) -> list[str]:
        """Those that may be taken away: their model has another that is there and stays."""
        names = []
        for model in self.town.models:
            present = self.present(model, at_s)
            names += present if len(present) > 1 else []
        return names


def draw(
    town: Town, seed: int, seconds: float, *, restarts: bool = True, worker_every_s: float = 2.5
) -> Schedule:
    """The faults of a run of ``seconds``: a cut after at most a second, always, and the other faults between.

    ``restarts``: the gateway is drained and killed too, in the first half of the run, so that memory can be
    judged on processes that lived through the second half; the first agent is not killed there either.
    """
    draft = _Draft(town, seed, Random(seed), seconds, witness=town.posts[0].name)
    gateway_times = list(_gateway_times(draft)) if restarts else []
    loss_times = list(_loss_times(seconds))
    gateway_kinds = cycle((Kind.GATEWAY_DRAIN, Kind.GATEWAY_KILL, Kind.STATE_DELETED))
    for _ in range(seed % 3):
        next(gateway_kinds)
    cuts = int((seconds - _QUIET_BEGIN_S) / _CUT_EVERY_S)
    for number in range(cuts):
        _cut(draft, _QUIET_BEGIN_S + number * _CUT_EVERY_S)
    for second in range(int(_QUIET_BEGIN_S), int(seconds)):
        _other_link(draft, float(second))
        if gateway_times and gateway_times[0] <= second:
            _restart_gateway(draft, gateway_times.pop(0), next(gateway_kinds))
        if loss_times and loss_times[0] <= second and _lose_for_long(draft, float(second)):
            loss_times.pop(0)
        if draft.random.random() < 1 / worker_every_s:
            _take_worker_away(draft, float(second))
        if second % _BLACKOUT_EVERY_S == 45:
            _blackout(draft, float(second))
    faults = sorted(draft.faults, key=lambda fault: (fault.at_s, fault.kind, fault.target))
    return Schedule(seed, seconds, tuple(faults))


def _cut(draft: _Draft, at_s: float) -> None:
    """Of one link mostly, of all links now and then; after some bytes more, so anywhere in a frame."""
    random = draft.random
    names = [post.name for post in draft.town.posts]
    target = EVERYBODY if random.random() < 0.08 else random.choice(names)
    at_s += random.uniform(0, _CUT_SPREAD_S)
    draft.add(at_s, Kind.LINK_CUT, target, amount=random.randrange(0, 3000))


def _other_link(draft: _Draft, second: float) -> None:
    random = draft.random
    if random.random() > 0.5:
        return
    weighted = {
        Kind.LINK_DELAY: 4,
        Kind.LINK_NARROW: 3,
        Kind.LINK_STALL: 3,
        Kind.LINK_TRUNCATE: 3,
        Kind.LINK_CORRUPT: 3,
        Kind.LINK_HALF_AGENT: 1,
        Kind.LINK_HALF_GATEWAY: 1,
        Kind.LINK_VANISH: 1,
    }
    kind = random.choices(list(weighted), list(weighted.values()))[0]
    target = random.choice(draft.town.posts).name
    at_s = second + random.uniform(0, 0.9)
    lasts_s = {Kind.LINK_DELAY: (1, 4), Kind.LINK_NARROW: (1, 4), Kind.LINK_STALL: (0.3, 4)}.get(kind)
    amount = {Kind.LINK_DELAY: (0.02, 0.2), Kind.LINK_NARROW: (60e3, 400e3)}.get(kind, (0, 3000))
    draft.add(
        at_s,
        kind,
        target,
        0.0 if lasts_s is None else random.uniform(*lasts_s),
        random.uniform(*amount) if kind in (Kind.LINK_DELAY, Kind.LINK_NARROW) else random.randrange(0, 3000),
    )


def _take_worker_away(draft: _Draft, second: float) -> None:
    random = draft.random
    at_s = second + random.uniform(0, 0.9)
    kind = random.choice((*AGENT_KINDS, *AGENT_KINDS, *ENGINE_KINDS))
    spare = [name for name in draft.spare(at_s) if _fits(draft, kind, name, at_s)]
    lasts_s = random.uniform(0.5, 3.0) if kind in AGENT_KINDS else random.uniform(1.0, 8.0)
    if kind is Kind.ENGINE_FREEZE and draft.seconds >= _LONG_S:
        lasts_s += _FREEZE_S
    if not spare:
        return
    target = random.choice(spare)
    draft.add(at_s, kind, target, lasts_s)
    draft.away_until_s[target] = at_s + lasts_s + settle_s(draft.town, kind, target)


def _loss_times(seconds: float) -> Iterator[float]:
    at_s = seconds * _LOSS_FROM
    while seconds >= _LONG_S and at_s < seconds:
        yield at_s
        at_s += _LOSS_EVERY_S


def _lose_for_long(draft: _Draft, second: float) -> bool:
    """Of the model with the most engines one is lost, if others are there. Whether it was."""
    posts = [draft.town.by_name[name] for name in draft.spare(second)]
    posts = [post for post in posts if not post.is_demo and post.name != draft.witness]
    if not posts:
        return False
    target = max(posts, key=lambda post: len(draft.town.of_model(post.model))).name
    kind = LOSS_KINDS[(draft.seed + int(second / _LOSS_EVERY_S)) % len(LOSS_KINDS)]
    draft.add(second, kind, target, LOSS_S)
    draft.away_until_s[target] = second + LOSS_S + settle_s(draft.town, kind, target)
    return True


def settle_s(town: Town, kind: Kind, target: str) -> float:
    """How long after the end of such a fault its target is not yet counted on."""
    if town.by_name[target].is_demo:
        return SETTLE_S["demo"]
    return SETTLE_S["agent" if kind in AGENT_KINDS else "engine"]


def _fits(draft: _Draft, kind: Kind, name: str, at_s: float) -> bool:
    if kind in ENGINE_KINDS:
        return not draft.town.by_name[name].is_demo
    return name != draft.witness or at_s < draft.seconds / 2


def _gateway_times(draft: _Draft) -> Iterator[float]:
    at_s = 40.0
    while at_s < draft.seconds / 2:
        yield at_s + draft.random.uniform(0, 10)
        at_s += _GATEWAY_EVERY_S


def _restart_gateway(draft: _Draft, at_s: float, kind: Kind) -> None:
    """And half a minute later somebody starts a second one."""
    lasts_s = draft.random.uniform(0.0, 1.0)
    draft.add(at_s, kind, GATEWAY, lasts_s)
    if at_s + _SECOND_AFTER_S < draft.seconds:
        draft.add(at_s + _SECOND_AFTER_S, Kind.GATEWAY_SECOND, GATEWAY)
    for post in draft.town.posts:
        name = post.name
        draft.away_until_s[name] = max(draft.away_until_s.get(name, 0.0), at_s + _GATEWAY_AWAY_S)


def _blackout(draft: _Draft, second: float) -> None:
    model = draft.random.choice(
        [model for model in draft.town.models if not draft.town.of_model(model)[0].is_demo]
    )
    lasts_s = draft.random.uniform(2.0, 5.0)
    draft.add(second, Kind.BLACKOUT, model, lasts_s)
    until_s = second + lasts_s + SETTLE_S["engine"]
    for post in draft.town.of_model(model):
        draft.away_until_s[post.name] = max(draft.away_until_s.get(post.name, 0.0), until_s)
