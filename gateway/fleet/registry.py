"""Which agents are connected, what they serve and how many slots they grant.

Everything belongs to the event loop's thread. Models once served stay known; the background writer writes
them down, so that a restarted gateway waits for them.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from gateway.domain.request import AgentPrincipal
from gateway.domain.slices import Stepwise
from gateway.fleet.availability import ModelRecord
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.fleet.session import AgentInfo, AgentSession
from gateway.observability.fleet_figures import AgentFigures, FleetFigures, SessionTotals
from gateway.observability.metrics import Metrics
from shared.handshake import ResumeRequest
from shared.protocol import limits
from shared.protocol.control_frames import ControlFrameLimiter
from shared.protocol.endpoint import SessionEndpoint
from shared.protocol.errors import ErrorCode, HandshakeRejected, TunnelClosed
from shared.protocol.messages import CommandResult
from shared.protocol.others import Others

_log = structlog.get_logger(__name__)

_EARNED_S = limits.CONTROL_FRAMES_BURST / limits.CONTROL_FRAMES_PER_S
"""After so long without a session an agent has earned all the control frames that it may send at once."""


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Bounds on what agents may bring."""

    max_agents: int = 4096
    max_models: int = 4096
    """Model names remembered, served or gone."""
    max_slots: int = limits.OPEN_STREAMS
    """The most slots of one deployment; a session cannot have more streams anyway."""
    owned_by: str = "trunkline"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model for ``GET /v1/models``."""

    id: str
    created_s: int
    """Unix time at which a deployment of it was first seen by this gateway."""
    owned_by: str
    ready: bool
    """A deployment of it is loaded and takes requests now."""
    deployments: int
    """Deployments that serve it now or are loading it."""
    routes: tuple[str, ...]
    """What those and the ``loadable`` ones can do, sorted; empty when there are none."""
    loadable: int = 0
    """Deployments that would be loaded when a request for it comes."""
    context_tokens: int | None = None
    """The most tokens of a request at those that say how many they take; None: none does."""
    translated: tuple[str, ...] = ()
    """Those of ``routes`` that are translated at every deployment, sorted."""
    capabilities: tuple[str, ...] = ()
    """What engines say of the model, in their words."""

    @classmethod
    def of(
        cls,
        name: str,
        created_s: int,
        owned_by: str,
        serving: Collection[Deployment],
        others: Collection[Deployment],
    ) -> "ServedModel":
        """The model that ``serving`` serve, and ``others`` would once they have loaded it."""
        there = (*serving, *others)
        routes = sorted({route for each in there for route in each.routes})
        return cls(
            id=name,
            created_s=created_s,
            owned_by=owned_by,
            ready=any(each.compute_usable() and each.slots for each in serving),
            deployments=len(serving),
            routes=tuple(routes),
            loadable=len(others),
            context_tokens=max((each.most_tokens for each in there if each.most_tokens), default=None),
            translated=tuple(
                route
                for route in routes
                if all(route in each.translated for each in there if route in each.routes)
            ),
            capabilities=tuple(dict.fromkeys(word for each in there for word in each.capabilities)),
        )


class Registry:
    """Connected agents, their deployments, and the index over them."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        settings: RegistrySettings = RegistrySettings(),
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` gives seconds of the event loop's clock (``loop.time``), ``wall`` Unix time."""
        self.metrics = metrics
        self.clock = clock
        self.settings = settings
        self.wall = wall
        self.index = ModelIndex(clock, settings.max_models)
        self._sessions: dict[str, AgentSession] = {}
        self._left: dict[str, tuple[float, ControlFrameLimiter]] = {}
        """Agents that left not long ago, oldest first: when, and what control frames they may still send."""
        self._lost: dict[AgentSession, None] = {}
        """Those that have lost their tunnels; some have one again."""
        self._generation = 0
        self._ended = SessionTotals()
        """Of the sessions that are over."""
        self.answered: Callable[[AgentSession, CommandResult], None] = lambda session, result: None
        """Called with what agents say to commands."""
        self.others: Callable[[AgentSession, Others], None] = lambda session, others: None
        """Called with what agents say of the requests of other processes (PROTOCOL §4.11)."""
        self.ended: Callable[[AgentSession], None] = lambda session: None
        """Called with each session that ends."""
        self.agreed: Callable[[AgentSession, Sequence[str]], None] = lambda session, capabilities: None
        """Called with what is agreed on with an agent whose tunnel is up (PROTOCOL §8.5)."""
        self.gateway_id: Callable[[], str] = str
        """This gateway's id, for agents that are gateways (PROTOCOL §7.6)."""
        self.gateway_ids: Callable[[], frozenset[str]] = frozenset
        """It, and the one before while that counts."""
        metrics.gauges.fleet = self.figures

    def watch_results(self, answered: Callable[[AgentSession, CommandResult], None]) -> None:
        """``answered`` is called with what agents say to commands."""
        self.answered = answered

    @property
    def max_slots(self) -> int:
        return self.settings.max_slots

    @property
    def agents_connected(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> list[AgentSession]:
        """The sessions of all connected agents, in the order in which they connected."""
        return list(self._sessions.values())

    def check_room(self, agent: str) -> None:
        """Raises HandshakeRejected when one more agent is too many. One that is connected may come again."""
        if agent not in self._sessions and len(self._sessions) >= self.settings.max_agents:
            raise HandshakeRejected(ErrorCode.OVERLOADED, "this gateway has all the agents it takes", 30.0)

    def next_generation(self) -> int:
        """A number for a new session, greater than all before it."""
        self._generation += 1
        return self._generation

    def resumable(self, principal: AgentPrincipal, request: ResumeRequest) -> AgentSession | None:
        """The session that an agent wants to resume: its own, not over, and with everything still kept that
        the agent has not received. It gets the agent's present rights."""
        session = self._sessions.get(principal.name)
        if session is None or session.closed or not session.id or session.id != request.id:
            return None
        if not session.endpoint.session.log.can_resume(request.received):
            _log.warning("agent_cannot_resume", agent=principal.name, received=request.received)
            return None
        session.allow(principal)
        return session

    def allow(self, session: AgentSession, principal: AgentPrincipal) -> None:
        """Gives a connected agent other rights, or another name. A session here that had the name has another
        one by now, or none, and is updated next."""
        former, name = session.principal.name, principal.name
        if name != former and not session.closed:
            if self._sessions.get(former) is session:
                del self._sessions[former]
            self._sessions[name] = session
            _log.info("agent_renamed", agent=name, former=former)
        session.allow(principal)

    def give_up_lost(self, window_s: float) -> None:
        """End the sessions that have had no tunnel for ``window_s``."""
        now = self.clock()
        for session in list(self._lost):
            if session.closed or session.lost_s is None:
                del self._lost[session]
            elif now - session.lost_s >= window_s:
                session.endpoint.lost(TunnelClosed(f"no tunnel for {now - session.lost_s:.0f} s"))

    def lose(self, session: AgentSession) -> None:
        """A session's tunnel is gone; it may get another one (:meth:`give_up_lost`)."""
        session.lost_s = self.clock()
        self._lost[session] = None

    def attach(
        self,
        principal: AgentPrincipal,
        endpoint: SessionEndpoint,
        generation: int | None = None,
        session_id: str = "",
    ) -> AgentSession:
        """A new session of an agent. It replaces the one the agent had, whose streams are lost with it.

        The newest wins: a session whose ``generation`` is older than the connected one's is closed itself.
        """
        session = AgentSession(self, principal, endpoint, generation or self.next_generation(), session_id)
        old = self._sessions.get(principal.name)
        if old is not None and old.generation > session.generation:
            session.close(ErrorCode.REPLACED, "a newer tunnel of the same agent is there already")
            return session
        self._sessions[principal.name] = session
        spent = self._left.get(principal.name) if old is None else (0.0, old.endpoint.session.control_frames)
        if spent is not None:  # a new session is no new allowance, however often an agent comes
            endpoint.session.control_frames = spent[1].left()
        if old is not None:
            _log.info("agent_replaced", agent=principal.name)
            old.close(ErrorCode.REPLACED, "a newer tunnel of the same agent took over")
        _log.info("agent_connected", agent=principal.name, agents=len(self._sessions))
        return session

    def session_on(self, endpoint: SessionEndpoint, agent: str) -> AgentSession | None:
        """The agent's session if it is the one on ``endpoint``."""
        session = self._sessions.get(agent)
        return session if session is not None and session.endpoint is endpoint else None

    def detach(self, session: AgentSession) -> None:
        """A session ended. Removes itself only: a newer one of the same agent stays."""
        name = session.principal.name
        self._ended.add_ended(session.endpoint.session)
        self.ended(session)
        if self._sessions.get(name) is session:
            del self._sessions[name]
            self._remember_spent(name, session)
            _log.info("agent_disconnected", agent=name, agents=len(self._sessions))

    def _remember_spent(self, name: str, session: AgentSession) -> None:
        """Keeps what an agent has spent, until it would have earned all of it back."""
        now = self.clock()
        self._left.pop(name, None)
        self._left[name] = now, session.endpoint.session.control_frames
        while now - next(iter(self._left.values()))[0] >= _EARNED_S:
            del self._left[next(iter(self._left))]

    def models(self) -> list[ServedModel]:
        """Every model that was ever served, by name; those nothing serves now have no deployments."""
        return list(self.each_model())

    def each_model(self) -> Iterator[ServedModel]:
        """The same one after the other, each described when it is reached."""
        return (self._describe(record) for _, record in sorted(self.index.models.items()))

    def model(self, name: str) -> ServedModel | None:
        """One model, None when nothing ever served it."""
        record = self.index.models.get(name)
        return None if record is None else self._describe(record)

    def agents(self) -> list[AgentInfo]:
        """Every connected agent, by name."""
        return list(self.each_agent())

    def each_agent(self) -> Iterator[AgentInfo]:
        """The same one after the other, each described when it is reached."""
        return (session.describe() for _, session in sorted(self._sessions.items()))

    def figures(self) -> Stepwise[FleetFigures]:
        """What the metrics show of the fleet, an agent a step."""
        figures = FleetFigures(totals=replace(self._ended))
        for session in self.sessions:
            figures.totals.add(session.endpoint.session)
            _add_reported(figures, session)
            figures.agents[session.shown_status.lower()] += 1
            figures.streams += len(session.endpoint.streams)
            slots = in_flight = 0
            for deployment in session.deployments.values():
                figures.deployments[deployment.model, deployment.status.value] += 1
                if deployment.promising:
                    figures.slots[deployment.model] += deployment.slots
                    slots += deployment.slots
                    if deployment.slots:
                        figures.use(deployment.model, deployment.in_flight / deployment.slots)
                figures.in_flight[deployment.model] += deployment.in_flight
                in_flight += deployment.in_flight
            each = AgentFigures(session.principal.name, slots, in_flight, session.endpoint.rtt_s)
            figures.each_agent.append(each)
            yield
        return figures

    def _describe(self, record: ModelRecord) -> ServedModel:
        serving, loadable = record.serving.values(), record.loadable.values()
        return ServedModel.of(record.name, record.created_s, self.settings.owned_by, serving, loadable)


def _add_reported(figures: FleetFigures, session: AgentSession) -> None:
    """What the agent says of its GPUs and of the work of its engines."""
    state = session.reported
    figures.gpus += [(session.principal.name, gpu) for gpu in state.gpus]
    for claim in state.deployments:
        if (deployment := session.deployments.get(claim.id)) is not None and deployment.listed:
            figures.engine_running[claim.model] += claim.running
            figures.engine_waiting[claim.model] += claim.waiting
            if claim.kv_use is not None:
                figures.kv_use[claim.model] = max(claim.kv_use, figures.kv_use.get(claim.model, 0.0))
