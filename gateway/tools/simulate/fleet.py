"""Fleets as people write them (``4*h100,4*l4@40ms``), the simulated deployments that they are made of, and
which of these have a slot free."""

import math
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.scheduling.base import DeploymentView
from gateway.scheduling.load import DeploymentLoad
from gateway.tools.simulate.devices import (
    DevicePace,
    SimulatedModel,
    device_named,
    pace_of,
    slowed,
    varied,
)
from gateway.tools.simulate.engine import NEVER, EngineRun, SimulatedEngine
from gateway.tools.simulate.inputs import BadSpec, Job

ROUTE = "chat"

MANY = 1 << 29
"""Slots of a deployment that takes whatever is pushed at it."""

DEFAULT_RTT_S = 0.002
"""Round trip between gateway and agent where nothing is said: one data centre."""

MAX_DEVICES = 100_000
MAX_RTT_S = 10.0
_GROUP = re.compile(r"\s*(?:(\d{1,9})\s*\*)?\s*([a-z][a-z0-9]*)\s*(?:@\s*(\d+(?:\.\d+)?)\s*ms)?\s*")


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """``count`` devices of one class, each a round trip of ``rtt_s`` from the gateway."""

    count: int
    card: str
    rtt_s: float = DEFAULT_RTT_S

    def __str__(self) -> str:
        far = "" if self.rtt_s == DEFAULT_RTT_S else f"@{self.rtt_s * 1000:g}ms"
        return f"{self.count}*{self.card}{far}"


Fleet = tuple[DeviceGroup, ...]


def fleet_of(text: str, own: Collection[str] = (), rtt_s: float | None = None) -> Fleet:
    """Reads ``COUNT*CLASS[@RTTms][,…]``; ``own`` are further names of classes, ``rtt_s`` the round trip of
    those that say none. Raises BadSpec."""
    if rtt_s is not None and not 0 <= rtt_s <= MAX_RTT_S:
        raise BadSpec("--rtt", f"a round trip of {rtt_s:g} s is not from 0 to {MAX_RTT_S:g} s")
    default_s = DEFAULT_RTT_S if rtt_s is None else rtt_s
    groups = tuple(_group(part, own, default_s) for part in text.split(","))
    if device_count(groups) > MAX_DEVICES:
        raise BadSpec("--fleet", f"{device_count(groups):,} devices are more than {MAX_DEVICES:,}")
    return groups


def device_count(fleet: Sequence[DeviceGroup]) -> int:
    return sum(group.count for group in fleet)


def fleet_text(fleet: Sequence[DeviceGroup]) -> str:
    """As :func:`fleet_of` reads it."""
    return ",".join(map(str, fleet))


def scaled(fleet: Fleet, times: int) -> Fleet:
    """So many of the smallest fleet that is composed in the same way."""
    unit = math.gcd(*(group.count for group in fleet))
    return tuple(replace(group, count=group.count // unit * times) for group in fleet)


def _group(part: str, own: Collection[str], default_rtt_s: float) -> DeviceGroup:
    match = _GROUP.fullmatch(part)
    if match is None:
        raise BadSpec(
            "--fleet", f"{part.strip()!r} is not COUNT*CLASS or COUNT*CLASS@RTTms, as 4*h100 or 2*l4@40ms"
        )
    count, card, rtt_ms = int(match[1] or 1), match[2], match[3]
    if card not in own:
        device_named(card)
    if not count:
        raise BadSpec("--fleet", f"{part.strip()!r} has no device")
    rtt_s = default_rtt_s if rtt_ms is None else float(rtt_ms) / 1000
    if rtt_s > MAX_RTT_S:
        raise BadSpec("--fleet", f"a round trip of {rtt_s:g} s is more than {MAX_RTT_S:g} s")
    return DeviceGroup(count, card, rtt_s)


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """A device with its engine."""

    engine: SimulatedEngine
    slots: int
    fixed_s: float = 0.0
    """Every request takes so long from its agent to its engine."""
    planned_s: float = NEVER
    """The engine's next event that is in the calendar."""
    epoch: int = 0
    """Counts its losses: what was sent before one never arrives."""
    held: list[EngineRun] = field(default_factory=list)
    """Those that came while it has not loaded its model; the first of them makes it load."""
    seen: "list[SimulatedDeployment]" = field(default_factory=list)
    """What each gateway sees of it."""

    def report(self) -> None:
        """The engine's state reaches the gateways, if it is one that says it."""
        free = self.engine.memory.free
        for deployment in self.seen:
            if deployment.view.kv_free_tokens is not None:
                deployment.view.kv_free_tokens = free


@dataclass(slots=True, eq=False)
class SimulatedDeployment:
    """A device as one gateway sees it; ``view`` is all that the gateway would know."""

    view: DeploymentView
    device: SimulatedDevice
    counted_free: int = 0
    """Free slots as of when they were last counted."""
    on_level: Callable[[], None] = lambda: None
    """Called when the agent has lent it more slots or fewer."""

    @property
    def engine(self) -> SimulatedEngine:
        return self.device.engine

    @property
    def one_way_s(self) -> float:
        """Half a round trip."""
        return self.view.rtt_s / 2

    def for_another(self) -> "SimulatedDeployment":
        """The same device as another gateway sees it."""
        return seen_on(self.device, replace(self.view, load=DeploymentLoad()))


def seen_on(device: SimulatedDevice, view: DeploymentView) -> SimulatedDeployment:
    """``device`` as the gateway with that view sees it."""
    deployment = SimulatedDeployment(view, device)
    device.seen.append(deployment)
    return deployment


@dataclass(frozen=True, slots=True)
class DeploymentBuild:
    """How deployments are made of devices. ``slots`` is of each, None for what its memory suggests; ``cold``
    ones have not loaded the model; ``spread`` is by how much (the sigma of a log-normal factor) the true
    speeds of a class, and again of each device, differ from what is known of the class; ``slower`` is how
    many times slower each device is than that, in turns, without anybody's knowing."""

    slots: int | None = None
    cold: bool = False
    spread: float = 0.0
    own: Mapping[str, DevicePace] = field(default_factory=dict)
    """Measured paces of the model, by names of classes."""
    slower: tuple[float, ...] = (1.0,)


def deployments_of(
    fleet: Fleet,
    model: SimulatedModel,
    block_tokens: int,
    build: DeploymentBuild,
    *,
    late: bool,
    seed: int = 0,
) -> list[SimulatedDeployment]:
    """Every device of the fleet with ``model``. ``late`` ones grant slots and say how much KV memory is free,
    the others take everything and say nothing. Raises BadSpec where the model does not fit."""
    sites: list[SimulatedDeployment] = []
    for group in fleet:
        known = build.own.get(group.card) or pace_of(device_named(group.card), model)
        known = known if build.slots is None else replace(known, max_running=build.slots)
        pace = varied(known, build.spread, random.Random(f"{seed} {group.card}"))
        for _ in range(group.count):
            name = f"{group.card}-{len(sites):05}"
            view = DeploymentView(
                key=name,
                agent=name,
                model=model.name,
                routes=frozenset({ROUTE}),
                slots=(build.slots or pace.slots) if late else MANY,
                device=group.card,
                rtt_s=group.rtt_s,
                kv_free_tokens=pace.kv_tokens if late else None,
                loaded=not build.cold,
            )
            own = varied(pace, build.spread, random.Random(f"{seed} {name}"))
            times = build.slower[len(sites) % len(build.slower)]
            engine = SimulatedEngine(slowed(own, times, times), block_tokens)
            sites.append(seen_on(SimulatedDevice(engine, view.slots), view))
    return sites


class OpenSlots:
    """``free`` is of all deployments together."""

    def __init__(self, sites: Sequence[SimulatedDeployment]) -> None:
        self.free = 0
        self._sites = {site.view.key: site for site in sites}
        self._open: dict[str, DeploymentView] = {}
        self._listed: list[DeploymentView] | None = None
        capacities = [site.engine.memory.capacity_tokens for site in sites]
        self._least_kv, self._most_kv = min(capacities), max(capacities)

    def note(self, site: SimulatedDeployment) -> bool:
        """What ``site`` takes may have changed. True when it takes more than before."""
        view, before = site.view, site.counted_free
        free = site.counted_free = site.view.free
        self.free += free - before
        if (free > 0) != (before > 0):
            self._listed = None
            if free:
                self._open[view.key] = view
            else:
                del self._open[view.key]
        return free > before

    def fits_somewhere(self, job: Job) -> bool:
        return job.input_tokens + job.output_tokens <= self._most_kv

    def large(self, job: Job) -> bool:
        """Whether there are deployments that it does not fit."""
        return job.input_tokens + job.output_tokens > self._least_kv

    def views(self, job: Job) -> list[DeploymentView]:
        """Those with a slot free that ``job`` fits; not to be changed."""
        if self._listed is None:
            self._listed = list(self._open.values())
        if not self.large(job):
            return self._listed
        return [view for view in self._listed if self._sites[view.key].engine.fits(job)]
