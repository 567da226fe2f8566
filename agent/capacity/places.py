"""Engines and their deployments as requests find them: what runs at each. Pure; ``now`` is an argument.

A gateway learns a *level* per deployment: how many requests it may have in flight there, those it has
included. ``level = running there for it + free places of the engine``. For an engine with one deployment that
is the engine's limit; with several, each sees the places that the others leave.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from msgspec import Struct

from agent.capacity.capacity import EngineLimit
from agent.engines.backend import Backend
from agent.engines.managed import ManagedBackend
from shared.protocol.gpu_time import GpuClock
from shared.protocol.messages import DeploymentState, DeploymentStatus


@dataclass(slots=True, eq=False)
class OfferedEngine:
    """One engine of the agent."""

    backend: Backend
    loads: ManagedBackend | None
    """The backend, if it loads and unloads its engine."""
    limit: EngineLimit
    deployments: tuple[DeploymentState, ...] = ()
    places: "dict[str, DeploymentPlace]" = field(default_factory=dict)
    """By the deployments' ids: those that are offered, and those where something runs still."""
    alone: bool = True
    """It has not more than one deployment."""
    used_s: float = 0.0
    """When it was loaded, or a request last began or ended there."""
    gpu_clock: GpuClock = field(default_factory=GpuClock)
    lacks: dict[str, set[str]] = field(default_factory=dict)
    """Deployment id → known paths that its engine answered not to have, as needs."""
    logged: int | None = None
    """What was last logged of how many requests it takes at once."""

    @property
    def running(self) -> int:
        """Requests that the engine has, of all its deployments."""
        return self.gpu_clock.running

    @property
    def unloading(self) -> bool:
        return self.loads is not None and self.loads.unloading

    @property
    def loaded(self) -> bool:
        """One of its deployments is."""
        return any(deployment.status is DeploymentStatus.LOADED for deployment in self.deployments)

    def offer(self, deployments: tuple[DeploymentState, ...]) -> None:
        """These are its deployments from now on. What runs at others runs on."""
        kept = {place.id: place for place in self.places.values() if place.running}
        for deployment in deployments:
            place = self.places.get(deployment.id) or DeploymentPlace(deployment.id, self, deployment)
            place.deployment = deployment
            kept[deployment.id] = place
        self.deployments, self.places = deployments, kept
        self.alone = len(deployments) <= 1


@dataclass(slots=True, eq=False)
class DeploymentPlace:
    """One deployment, and the requests that run there. Its engine's are counted by its clock."""

    id: str
    engine: OfferedEngine
    deployment: DeploymentState
    """What is so of it now."""
    running: int = 0
    _by_session: dict[Hashable, int] = field(default_factory=dict)
    """Sessions whose requests run there, and how many of each."""

    def enter(self, session: Hashable, now: float) -> float:
        """A request of ``session`` runs. What it returns belongs to its :meth:`leave`."""
        self.running += 1
        self._by_session[session] = self._by_session.get(session, 0) + 1
        return self.engine.gpu_clock.start(now)

    def leave(self, session: Hashable, started: float, now: float) -> float:
        """It runs no more; returns the GPU-seconds that it used."""
        left = self._by_session.get(session, 0) - 1
        assert left >= 0, "left without having entered"
        if left:
            self._by_session[session] = left
        else:
            del self._by_session[session]
        self.running -= 1
        return self.engine.gpu_clock.end(started, now)

    def of(self, session: Hashable) -> int:
        """How many requests of ``session`` run there."""
        return self._by_session.get(session, 0)

    def level(self, session: Hashable, limit: int) -> int:
        """How many requests ``session`` may have in flight there, of ``limit`` at the engine."""
        return self.of(session) + max(0, limit - self.engine.running)


class EngineSlot(Struct, frozen=True, eq=False):
    """A place that a request has at an engine. To be given back with ``EngineRegistry.leave``, once."""

    session: Hashable
    place: DeploymentPlace
    others: int
    """Requests of this agent that the engine had when this one was let in."""
    lent: bool
    """It has a slot of those that are divided among sessions."""
    started: float
    """When it began, by the engine's :class:`~shared.protocol.gpu_time.GpuClock`."""
    entered_s: float
    """When it began, on the registry's clock."""

    @property
    def engine(self) -> str:
        return self.place.engine.backend.name

    @property
    def deployment(self) -> str:
        return self.place.id
