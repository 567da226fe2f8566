"""All engines of this agent together: what is offered, what runs where, and who is let in."""

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

import orjson
import structlog

from agent.capacity.capacity import EngineLimit
from agent.capacity.model_memory import ModelMemory
from agent.capacity.places import DeploymentPlace, EngineSlot, OfferedEngine
from agent.engines.backend import UNLOADING, Backend, BackendRefused, ModelLoader
from agent.engines.http.states import EngineReports, reason_nothing_is_served
from agent.engines.managed import ManagedBackend
from agent.engines.model_names import is_nameable
from shared.link.session_slots import SessionSlots
from shared.protocol import limits
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import (
    AgentState,
    AgentStatus,
    Command,
    CommandResult,
    CommandVerb,
    DeploymentState,
    DeploymentStatus,
    GpuState,
    state_within,
)
from shared.protocol.routes import LACKED

_LOADED = DeploymentStatus.LOADED

log = structlog.get_logger("agent.capacity.roster")

SHARED_EXCESS = 2
"""An engine with several deployments may for a moment have twice its slots: the levels of two deployments are
lowered only after a request for one of them has come, and a request for the other may be on its way. Not
one with a single slot, which a second request would wait in, or break."""

ENGINES_BYTES = 16 * 1024
"""The most bytes of a state that describe engines."""

STATE_BYTES = limits.CONTROL_PAYLOAD_BYTES - limits.FRAME_HEADER_BYTES


class EngineRegistry:
    """Follows the backends and keeps count. Calls ``on_change`` after each change of state() or levels()."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, room: ModelMemory | None = None) -> None:
        self._clock = clock
        self._room = room or ModelMemory()
        self._engines: dict[str, OfferedEngine] = {}
        self._places: dict[str, DeploymentPlace] = {}
        """Of the deployments that are offered, by their ids."""
        self._draining = False
        self._cut = False
        self._latest_session: Hashable = None
        """The session that asked for its levels last."""
        self.moves = 0
        """How often a request of that session, or of any whose slots are lent, was let in or has left."""
        self.on_change: Callable[[], None] = lambda: None
        self.on_levels: Callable[[], None] = lambda: None
        """Called when the levels of sessions have changed and nothing else."""
        self.slots = SessionSlots(clock, lambda: self.on_levels())
        """Divides the slots among sessions, where a gateway has several processes."""
        self._reports = EngineReports()
        self.without_engines = "no engine is named in its settings"
        """Why nothing is served while there is no engine; for people."""

    @property
    def running(self) -> int:
        return sum(engine.running for engine in self._engines.values())

    def add(self, backend: Backend) -> None:
        """Offer what a started backend offers, from now on."""
        assert backend.name not in self._engines, f"two engines are called {backend.name}"
        loads = backend if isinstance(backend, ManagedBackend) else None
        engine = self._engines[backend.name] = OfferedEngine(
            backend, loads, EngineLimit(0), used_s=self._clock()
        )
        backend.subscribe(lambda: self._changed(engine))
        self._changed(engine)

    def drain(self) -> None:
        """From now on no request is let in."""
        self._draining = True
        self.on_change()

    def carry_out(self, command: Command) -> CommandResult:
        """Begin what a gateway wants, or say why not (PROTOCOL §4.8)."""
        try:
            if self._draining:
                raise BackendRefused("the agent is draining")
            place = self._find(command.deployment)
            engine = place.engine
            if isinstance(engine.backend, ModelLoader):
                self._move_model(engine.backend, place, command)
                return CommandResult(command.id, True)
            if engine.loads is None or not engine.loads.loading.managed:
                raise BackendRefused("the deployment is not one that is loaded and unloaded")
            if command.verb is CommandVerb.LOAD:
                self._load(engine, engine.loads)
            else:
                self._unload(engine, engine.loads)
        except BackendRefused as refusal:
            log.info("command refused", verb=command.verb, id=command.deployment, reason=refusal.reason)
            return CommandResult(command.id, False, refusal.reason[: limits.REASON_CHARS])
        return CommandResult(command.id, True)

    def _move_model(self, loader: ModelLoader, place: DeploymentPlace, command: Command) -> None:
        """Raises :class:`BackendRefused`."""
        if command.verb is CommandVerb.LOAD:
            loader.load_model(place.id)
        elif place.running:
            raise BackendRefused(f"{place.running} requests run there")
        else:
            loader.unload_model(place.id)

    def _load(self, engine: OfferedEngine, loads: ManagedBackend) -> None:
        """Raises :class:`BackendRefused`."""
        if not loads.wanted:
            self._room.check(loads, self._all_that_load())
            log.info("loading", engine=loads.name)
        engine.used_s = self._clock()
        loads.load()

    def _unload(self, engine: OfferedEngine, loads: ManagedBackend) -> None:
        """Raises :class:`BackendRefused`."""
        if engine.running:
            raise BackendRefused(f"{engine.running} requests run there")
        if loads.wanted and not loads.unloading:
            log.info("unloading", engine=loads.name)
        loads.unload()

    def _all_that_load(self) -> list[ManagedBackend]:
        return [engine.loads for engine in self._engines.values() if engine.loads is not None]

    def _unload_idle(self) -> None:
        now = self._clock()
        for engine in self._engines.values():
            loads = engine.loads
            if loads is None or loads.loading.idle_timeout_s is None or not loads.wanted or loads.unloading:
                continue
            loading = loads.status is DeploymentStatus.LOADING
            if loading or engine.running or self._draining:
                continue
            if now - engine.used_s >= loads.loading.idle_timeout_s:
                log.info("unloading, not used", engine=loads.name, idle_s=round(now - engine.used_s, 1))
                loads.unload()

    def observe(self) -> None:
        """Look at the engines' queues, and who has not been used; to be called every second or so."""
        self._unload_idle()
        before = [engine.limit.current for engine in self._engines.values()]
        for engine in self._engines.values():
            self._observe(engine)
            _log_refusals(engine)
        if before != [engine.limit.current for engine in self._engines.values()]:
            self.on_change()

    def enter(self, session: Hashable, deployment_id: str) -> EngineSlot:
        """A place for one request of ``session``. Raises :class:`BackendRefused` when there is none."""
        place = self._places.get(deployment_id)
        if place is None or self._draining or place.deployment.status is not _LOADED:
            raise BackendRefused(self._why_not(deployment_id))
        engine = place.engine
        if engine.loads is not None and engine.loads.unloading:
            raise BackendRefused(UNLOADING)
        limit, others = engine.limit, engine.gpu_clock.running
        slots = limit.slots
        most = slots if engine.alone or slots == 1 else slots * SHARED_EXCESS
        if others >= most or place.running >= slots:
            raise BackendRefused(f"all {slots} slots are taken")
        lent = session in self.slots
        if lent and not self.slots.enter(session, engine.backend.name, beyond=most > slots):
            raise BackendRefused("the gateway's process has no slot left: its level was lowered")
        engine.used_s = now = self._clock()
        started = place.enter(session, now)
        if lent or session is self._latest_session:
            self.moves += 1
        if limit.refusals.most is not None:
            limit.refusals.entered(others + 1)
        if not engine.alone:
            self.on_change()
        return EngineSlot(session, place, others, lent, started, now)

    def _why_not(self, deployment_id: str) -> str:
        """Why no request is let in there. Raises :class:`BackendRefused` where there is no such place."""
        if self._draining:
            return "the agent is draining"
        deployment = self._find(deployment_id).deployment
        return f"the deployment is {deployment.status}: {deployment.reason or 'not loaded'}"

    def leave(
        self, seat: EngineSlot, *, failed: bool, out_of_memory: bool = False, refused: bool | None = None
    ) -> float:
        """Give a place back; returns the GPU-seconds that were used there, from all sessions' requests. The
        engine ``failed`` the request, or said that it is ``out_of_memory``; it ``refused`` the request as one
        too many, or served it (False); None: neither is known."""
        place = seat.place
        engine = place.engine
        engine.used_s = now = self._clock()
        gpu_s = place.leave(seat.session, seat.started, now)
        known = seat.lent or seat.session is self._latest_session
        if known:
            self.moves += 1
        if seat.lent:
            self.slots.leave(seat.session, seat.engine)
        changed = not (known and engine.alone)
        limit = engine.limit
        if failed or out_of_memory or refused or not limit.is_steady():
            before = limit.current
            limit.finished(failed=failed)
            if out_of_memory:
                self._spare(engine)
            if refused:
                limit.refusals.refused(seat.others, now)
            elif refused is not None:
                limit.refusals.served(seat.others, limit.slots, now)
            changed |= limit.current != before
        if changed:
            self.on_change()
        return gpu_s

    def note_lack(self, seat: EngineSlot, need: str) -> None:
        """The engine has nothing at the path of ``need``. This counts until an engine appears there anew."""
        lacks = seat.place.engine.lacks.setdefault(seat.deployment, set())
        if need not in lacks and len(lacks) < LACKED:
            lacks.add(need)
            log.info("the engine has no such path", deployment=seat.deployment, path=need)
            self.on_change()

    def _spare(self, engine: OfferedEngine) -> None:
        before = engine.limit.current
        engine.limit.ran_out_of_memory(self._clock())
        if engine.limit.current < before:
            log.warning(
                "engine out of memory, it gets less",
                engine=engine.backend.name,
                slots=engine.limit.current,
                of=engine.limit.slots,
            )

    def levels(self, session: Hashable) -> Mapping[str, int]:
        """Deployment id → how many requests ``session`` may have in flight there."""
        self._latest_session = session
        return {
            deployment.id: 0
            if self._draining or engine.unloading or deployment.status is not DeploymentStatus.LOADED
            else self._level(session, engine.places[deployment.id])
            for engine in self._engines.values()
            for deployment in engine.deployments
        }

    def _level(self, session: Hashable, place: DeploymentPlace) -> int:
        name, limit = place.engine.backend.name, place.engine.limit.current
        if session not in self.slots:
            return place.level(session, limit)
        self.slots.set_limit(name, limit)
        return max(0, place.of(session) + self.slots.spare(session, name))

    def state(self, gpus: tuple[GpuState, ...] = ()) -> AgentState:
        """All there is to say, cut to what fits into a frame."""
        memory_bytes = self._room.for_managed_bytes(self._all_that_load())
        engines = self._engine_states()
        state = AgentState(
            self._status(),
            self._all_deployments(),
            gpus[: limits.GPUS],
            memory_bytes,
            engines=engines,
            reason=reason_nothing_is_served(engines, self.without_engines),
        )
        state = state_within(state, STATE_BYTES)
        if not self._cut and len(state.deployments) < sum(len(e.deployments) for e in self._engines.values()):
            self._cut = True
            log.warning(
                "too many models to offer them all; name the ones wanted in the configuration",
                offered=len(state.deployments),
                first_left_out=self._all_deployments(limits.DEPLOYMENTS + 1)[len(state.deployments)].model,
            )
        return state

    def _engine_states(self) -> tuple[EngineState, ...]:
        """As many as there is room for beside the deployments."""
        states = tuple(engine.backend.engine() for engine in self._engines.values())[: limits.ENGINES]
        while len(orjson.dumps(states)) > ENGINES_BYTES:
            states = states[: len(states) * 9 // 10]
        return states

    def _all_deployments(self, most: int = limits.DEPLOYMENTS) -> tuple[DeploymentState, ...]:
        found = [
            self._as_latest_session(engine, deployment)
            for engine in self._engines.values()
            for deployment in engine.deployments
        ]
        return tuple(found[:most])

    def _as_latest_session(self, engine: OfferedEngine, deployment: DeploymentState) -> DeploymentState:
        """Models of one process are loaded and unloaded together; each has its share of the memory."""
        running = max(deployment.running, engine.places[deployment.id].running)
        if learned := engine.lacks.get(deployment.id):
            lacks = tuple(sorted(learned.union(deployment.lacks)))[:LACKED]
            deployment = replace(deployment, lacks=lacks)
        if engine.loads is None:
            return deployment if running == deployment.running else replace(deployment, running=running)
        need = self._room.need_bytes(engine.loads)
        share = None if need is None else -(-need // len(engine.deployments))
        return replace(deployment, running=running, memory_bytes=share)

    def _status(self) -> AgentStatus:
        if self._draining:
            return AgentStatus.DRAINING
        every = [deployment.status for engine in self._engines.values() for deployment in engine.deployments]
        every = every or [engine.backend.engine().status for engine in self._engines.values()]
        if every and all(status is DeploymentStatus.FAILED for status in every):
            return AgentStatus.FAILED
        loaded = [engine for engine in self._engines.values() if engine.loaded]
        full = all(engine.running >= engine.limit.current for engine in loaded)
        return AgentStatus.BUSY if loaded and full else AgentStatus.READY

    def _find(self, deployment_id: str) -> DeploymentPlace:
        found = self._places.get(deployment_id)
        if found is None:
            raise BackendRefused("this agent has no such deployment")
        return found

    def _changed(self, engine: OfferedEngine) -> None:
        was_loaded = engine.loaded
        if not was_loaded:
            engine.lacks.clear()
        offered = engine.backend.deployments()
        engine.offer(tuple(deployment for deployment in offered if is_nameable(deployment.model)))
        self._places = {
            deployment.id: each.places[deployment.id]
            for each in reversed(self._engines.values())
            for deployment in reversed(each.deployments)
        }
        if not was_loaded and engine.loaded:
            engine.used_s = self._clock()
            engine.limit.started_anew()
        slots = max((deployment.slots for deployment in engine.deployments), default=0)
        if slots:
            engine.limit.set_slots(slots)
        models = [deployment.model for deployment in engine.deployments]
        self.slots.offer(engine.backend.name, models, engine.limit.current)
        self._observe(engine)
        self.on_change()

    def _observe(self, engine: OfferedEngine) -> None:
        now = self._clock()
        waiting = max((deployment.waiting for deployment in engine.deployments), default=0)
        engine.limit.observe(waiting, engine.running, now)
        self._reports.note(engine.backend.engine(), now, started_here=engine.loads is not None)


def _log_refusals(engine: OfferedEngine) -> None:
    """Once the refusals that came together are over, and not for every try."""
    learnt = engine.limit.refusals.learnt
    if learnt == engine.logged:
        return
    engine.logged = learnt
    if learnt is None:
        log.info("engine takes all its slots again", engine=engine.backend.name, slots=engine.limit.slots)
    else:
        log.info(
            "engine refuses requests as too many, it gets no more than it takes",
            engine=engine.backend.name,
            slots=learnt,
            of=engine.limit.slots,
        )
