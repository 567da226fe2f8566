"""A simulated deployment: what policies see of it, and the engine behind it."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.scheduling.base import DeploymentView
from gateway.simulate.devices import Model, Pace, device_named, pace_of, slowed, varied, with_slots
from gateway.simulate.engine import NEVER, Engine, Run
from gateway.simulate.fleet import Fleet

ROUTE = "chat"

MANY = 1 << 29
"""Slots of a deployment that takes whatever is pushed at it."""


@dataclass(slots=True, eq=False)
class Site:
    """``view`` is all that a gateway would know."""

    view: DeploymentView
    engine: Engine
    planned_s: float = NEVER
    """The engine's next event that is in the calendar."""
    epoch: int = 0
    """Counts its losses: what was sent before one never arrives."""
    held: list[Run] = field(default_factory=list)
    """Those that came while it has not loaded its model; the first of them makes it load."""
    counted_free: int = 0
    """Free slots as of when they were last counted."""

    @property
    def way_s(self) -> float:
        """Half a round trip."""
        return self.view.rtt_s / 2

    def report(self) -> None:
        """The engine's state reaches the gateway, if it is one that says it."""
        if self.view.kv_free_tokens is not None:
            self.view.kv_free_tokens = self.engine.memory.free


@dataclass(frozen=True, slots=True)
class Build:
    """How deployments are made of devices. ``slots`` is of each, None for what its memory suggests; ``cold``
    ones have not loaded the model; ``spread`` is by how much (the sigma of a log-normal factor) the true
    speeds of a class, and again of each device, differ from what is known of the class; ``slower`` is how
    many times slower each device is than that, in turns, without anybody's knowing."""

    slots: int | None = None
    cold: bool = False
    spread: float = 0.0
    own: Mapping[str, Pace] = field(default_factory=dict)
    """Measured paces of the model, by names of classes."""
    slower: tuple[float, ...] = (1.0,)


def sites_of(
    fleet: Fleet, model: Model, block_tokens: int, build: Build, *, late: bool, seed: int = 0
) -> list[Site]:
    """Every device of the fleet with ``model``. ``late`` ones grant slots and say how much KV memory is free,
    the others take everything and say nothing. Raises BadSpec where the model does not fit."""
    sites: list[Site] = []
    for group in fleet:
        known = build.own.get(group.card) or pace_of(device_named(group.card), model)
        known = known if build.slots is None else with_slots(known, build.slots)
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
            sites.append(Site(view, Engine(slowed(own, times, times), block_tokens)))
    return sites
