"""One agent's session at the gateway: what the agent says is checked against what its identity allows."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import structlog

from gateway.domain.request import AgentPrincipal
from gateway.domain.residency import label_values, labels_within
from gateway.domain.scopes import matches
from gateway.domain.surface import is_model_name
from gateway.fleet.agent_info import AgentInfo as AgentInfo
from gateway.fleet.deployment import Deployment, log_status
from gateway.fleet.model_index import ModelIndex
from gateway.observability.metrics import Metrics
from shared.protocol import limits
from shared.protocol.demand import Demand
from shared.protocol.deployment_state import device_of
from shared.protocol.endpoint import SessionEndpoint, Stream
from shared.protocol.errors import ErrorCode, FrameMalformed, TrunklineError, TunnelClosed
from shared.protocol.messages import (
    AgentState,
    AgentStatus,
    CommandResult,
    DeploymentState,
    DeploymentStatus,
    Drain,
)
from shared.protocol.others import Others
from shared.protocol.peers import Peers
from shared.protocol.routes import ROUTES, UPGRADE_NEED

_log = structlog.get_logger(__name__)

SUSPENDED = "SUSPENDED"
"""The status shown for an agent whose tunnel is gone and whose session is kept."""

_ROUTES = frozenset(ROUTES)
"""Other routes that an agent names are ignored."""


class SessionOwner(Protocol):
    """What a session needs of the registry it is in."""

    index: ModelIndex
    metrics: Metrics
    clock: Callable[[], float]
    wall: Callable[[], float]
    gateway_id: Callable[[], str]
    gateway_ids: Callable[[], frozenset[str]]
    answered: "Callable[[AgentSession, CommandResult], None]"
    others: "Callable[[AgentSession, Others], None]"

    @property
    def max_slots(self) -> int: ...
    def lose(self, session: "AgentSession") -> None: ...
    def detach(self, session: "AgentSession") -> None: ...


class AgentSession:
    """One agent's session: listens to what it says and keeps its deployments (a SessionListener).

    What exceeds the agent's identity is left out, logged and counted once.
    """

    def __init__(
        self,
        owner: SessionOwner,
        principal: AgentPrincipal,
        endpoint: SessionEndpoint,
        generation: int,
        session_id: str = "",
    ) -> None:
        self.principal = principal
        self.endpoint = endpoint
        self.generation, self.id = generation, session_id
        self.connected_s = owner.clock()
        self.deployments: dict[str, Deployment] = {}
        """By id. One that the agent no longer names stays until its last stream is closed."""
        self.full = False  # it has as many streams as the agent allows; cleared when one closes
        self.draining = self.closed = False
        self.suspended = False  # its tunnel is gone or silent: nothing new is sent, what runs waits to go on
        self.tells_gpu_s = self.tells_others = False
        """Its agent says how many GPU-seconds a request used; and what runs there for other processes."""
        self.is_gateway, self.software = False, ""  # its agent is one (PROTOCOL §7.6); program and version
        self.lost_s: float | None = None  # when its tunnel went; None while there is one
        self._owner = owner
        self._levels: dict[str, int] = {}
        self._state = AgentState(AgentStatus.READY)
        self._refused: set[tuple[str, str]] = set()  # reasons and claims; each is logged and counted once
        self._awaited: dict[int, Callable[[CommandResult], None]] = {}  # callbacks of commands, by id
        endpoint.on_round_trip = self._round_trip_measured

    @property
    def takes_work(self) -> bool:
        working = self._state.status in (AgentStatus.READY, AgentStatus.BUSY)
        return working and not self.closed and not self.draining and not self.held

    @property
    def held(self) -> bool:
        """An operator wants it to get no new work. What runs goes on."""
        return self.principal.held

    @property
    def model_memory_bytes(self) -> int | None:
        """What all its managed deployments may take together; None: not known."""
        return self._state.model_memory_bytes

    @property
    def reported(self) -> AgentState:
        """What its agent said last."""
        return self._state

    @property
    def shown_status(self) -> str:
        if self.suspended:
            return SUSPENDED
        return AgentStatus.DRAINING.value if self.draining or self.held else self._state.status.value

    def describe(self) -> AgentInfo:
        listed = {d.id for d in self.deployments.values() if d.listed}
        return AgentInfo(
            name=self.principal.name,
            connected_s=self.connected_s,
            status=self._state.status,
            draining=self.draining or self.held,
            labels=self.principal.labels,
            rtt_s=self.endpoint.rtt_s,
            streams=len(self.endpoint.streams),
            deployments=tuple(state for state in self._state.deployments if state.id in listed),
            gpus=self._state.gpus,
            engines=self._state.engines,
            reason=self._state.reason,
            software=self.software,
        )

    def close(self, code: ErrorCode, reason: str) -> None:
        """End the session; its deployments take nothing more from now on, whatever is still being closed."""
        self.end()
        self.endpoint.close(code, reason)

    def end(self) -> None:
        """The session is over, or as good as over: its deployments go. Idempotent."""
        if self.closed:
            return
        self.closed = True
        for deployment in list(self.deployments.values()):
            self._unlist(deployment)
        self._owner.detach(self)

    def allow(self, principal: AgentPrincipal) -> None:
        """The agent has the rights of now: what it said before is held against them again. With another name
        its deployments are others, too; what runs on those there were goes on."""
        if principal == self.principal:
            return
        if principal == replace(self.principal, held=principal.held):
            self.principal = principal
            self._update_all()
            return
        if principal.name != self.principal.name:
            for deployment in list(self.deployments.values()):
                self._unlist(deployment)
                self._drop(deployment)
        self.principal = principal
        self._refused.clear()
        self.on_state(self._state)

    def ask(self, command: Mapping[str, Any], answered: Callable[[CommandResult], None]) -> None:
        """Sends a COMMAND; ``answered`` gets its RESULT. Raises TrunklineError when it cannot be sent."""
        self.endpoint.send_command(command)
        self._awaited[command["id"]] = answered

    def stream_closed(self, deployment: Deployment) -> None:
        """A stream of one of the deployments is over: there may be room for another in the session."""
        if self.full:
            self.set_full(False)
        if not deployment.listed and not deployment.in_flight:
            self._drop(deployment)

    def set_full(self, full: bool) -> None:
        self.full = full
        self._update_all()

    # --- SessionListener; the first four are never called, because these frames go to agents only ---

    def on_open(self, stream: Stream) -> None: ...
    def on_demand(self, demands: Mapping[str, Demand]) -> None: ...
    def on_peers(self, peers: Peers) -> None: ...
    def on_command(self, command: Mapping[str, Any]) -> None: ...

    def on_others(self, others: Others) -> None:
        """What runs there for other processes of the gateway has changed."""
        if self.tells_others and not self.closed:
            self._owner.others(self, others)

    def on_result(self, result: Mapping[str, Any]) -> None:
        """The answer to a command."""
        try:
            answer = CommandResult.read(result)
        except FrameMalformed as error:
            if self._is_first("result_unreadable", ""):
                _log.warning("agent_result_unreadable", agent=self.principal.name, error=str(error))
            return
        awaited = self._awaited.pop(answer.id, None)
        if awaited is not None:
            awaited(answer)
        else:
            self._owner.answered(self, answer)

    def on_slots(self, levels: Mapping[str, int]) -> None:
        """Levels for the deployments named; the others keep theirs."""
        most = self._owner.max_slots
        for key, level in levels.items():
            if key in self._levels or len(self._levels) < limits.DEPLOYMENTS:
                self._levels[key] = min(level, most)
            deployment = self.deployments.get(key)
            if deployment is not None and deployment.slots != self._level(key):
                deployment.slots = self._level(key)
                self._owner.index.update(deployment)

    def on_state(self, state: AgentState) -> None:
        if self.closed:
            return
        self._state = state
        for name, value in state.labels.items():
            if value not in label_values(self.principal.labels.get(name, "")):
                self._refuse(f"{name}={value}", "label_not_allowed")
        named = {claim.id: claim for claim in state.deployments if self._allowed(claim)}
        for deployment in list(self.deployments.values()):
            claim = named.get(deployment.id)
            if claim is None or claim.model != deployment.model:
                self._unlist(deployment)
            if claim is not None and claim.model != deployment.model:
                self._drop(deployment)  # another one of the same name takes its place
        claimed = {claim.id for claim in state.deployments}  # what is not allowed now may be one day
        self._levels = {key: level for key, level in self._levels.items() if key in claimed}
        for claim in named.values():
            self._list(claim)
        self._update_all()
        self._report_lost_engines()

    def on_drain(self, drain: Drain) -> None:
        if self.draining:
            return
        _log.info("agent_drains", agent=self.principal.name, reason=drain.reason, deadline_s=drain.deadline_s)
        self.draining = True
        self._update_all()

    def on_session_suspended(self, error: TrunklineError | None) -> None:
        self.suspended = True
        if error is not None:
            self._owner.lose(self)
        _log.info(
            "agent_suspended",
            agent=self.principal.name,
            reason="silent" if error is None else str(error),
            streams=len(self.endpoint.streams),
        )
        self._update_all()

    def on_session_resumed(self) -> None:
        _log.info("agent_resumed", agent=self.principal.name, streams=len(self.endpoint.streams))
        self.suspended = False
        self.lost_s = None
        self._update_all()

    def on_session_closed(self, error: TrunklineError | None) -> None:
        self.end()
        if error is None:
            return
        said_goodbye = isinstance(error, TunnelClosed) and error.code is ErrorCode.NO_ERROR
        if said_goodbye and self.lost_s is None:
            _log.info("agent_left", agent=self.principal.name, reason=str(error))
        else:
            _log.warning("agent_lost", agent=self.principal.name, error=str(error))

    # --- Steps ---

    def _round_trip_measured(self) -> None:
        for deployment in self.deployments.values():
            deployment.rtt_s = self.endpoint.rtt_s or 0.0

    def _allowed(self, claim: DeploymentState) -> bool:
        if not is_model_name(claim.model):
            self._refuse(claim.model, "unusable_name")
        elif self._owner.gateway_ids().intersection(claim.via):
            return False  # it is served through this very gateway
        elif not any(matches(claim.model, pattern) for pattern in self.principal.models):
            self._refuse(claim.model, "not_allowed")
        elif not self._owner.index.learn(claim.model, self._owner.wall()):
            self._refuse(claim.model, "too_many_models")
        else:
            self._owner.metrics.know_model(claim.model)
            return True
        return False

    def _is_first(self, reason: str, claim: str) -> bool:
        """True the first time that this is refused, as far as there is room to remember it."""
        if (reason, claim) in self._refused or len(self._refused) >= 4 * limits.DEPLOYMENTS:
            return False
        self._refused.add((reason, claim))
        return True

    def _refuse(self, claim: str, reason: str) -> None:
        if self._is_first(reason, claim):
            self._owner.metrics.claim_refused(reason)
            _log.warning("agent_claim_refused", agent=self.principal.name, claim=claim, reason=reason)

    def _list(self, claim: DeploymentState) -> None:
        deployment, labels = self.deployments.get(claim.id), self._labels_of(claim)
        if deployment is None:
            deployment = self.deployments[claim.id] = Deployment(
                key=f"{self.principal.name}/{claim.id}",
                agent=self.principal.name,
                model=claim.model,
                routes=frozenset(),
                id=claim.id,
                session=self,
                labels=labels,
                listed=False,
            )
        elif deployment.labels != labels:
            self._unlist(deployment)  # a choice by labels must find it anew
            self.deployments[claim.id] = deployment
            deployment.labels = labels
        self._take_status(deployment, claim)
        deployment.listed = True
        deployment.version = claim.version
        deployment.lacks = frozenset(claim.lacks if claim.upgrades else (*claim.lacks, UPGRADE_NEED))
        deployment.routes = _ROUTES.intersection(claim.routes) - deployment.lacks
        deployment.stateful, deployment.capabilities = claim.stateful, claim.capabilities
        deployment.work_scale, deployment.translated = claim.work, frozenset(claim.translated)
        deployment.continues, deployment.kind = claim.continues, claim.kind
        deployment.device = claim.device or device_of(claim, self._state.gpus)
        deployment.via, deployment.asked_as = claim.via, self._owner.gateway_id() if self.is_gateway else ""
        deployment.rtt_s = self.endpoint.rtt_s or 0.0
        deployment.slots = self._level(claim.id)
        tokens = claim.context_tokens, claim.kv_tokens
        if tokens != (deployment.context_tokens, deployment.kv_tokens):
            deployment.context_tokens, deployment.kv_tokens = tokens
            self._owner.index.forget_limit(claim.model)
        deployment.note_kv(claim.kv_use, claim.running)
        self._owner.metrics.computed(claim.model, deployment.note_batches(claim.batches))

    def _labels_of(self, claim: DeploymentState) -> dict[str, str]:
        """What the agent's identity allows of what is said of the deployment or, unless a gateway that is an
        agent says something of each, of the host."""
        allowed, said = self.principal.labels, claim.labels
        if said is None or not self.is_gateway:
            return labels_within(allowed, self._state.labels)
        for name, value in said.items():
            if name in allowed and value not in label_values(allowed[name]):
                self._refuse(f"{name}={value}", "label_not_allowed")
        return labels_within(allowed, said, exact=True)

    def _take_status(self, deployment: Deployment, claim: DeploymentState) -> None:
        """What its agent says of whether it is loaded, and of loading it."""
        before, now = deployment.status, self._owner.clock()
        deployment.status, deployment.reason = claim.status, claim.reason
        deployment.managed = claim.managed
        deployment.memory_bytes, deployment.reload_s = claim.memory_bytes, claim.load_s
        deployment.load_progress, deployment.promised_slots = claim.load_progress, claim.slots
        known = deployment.listed
        if known and claim.status is before:
            return
        log_status(deployment, before if known else None)
        if claim.status is DeploymentStatus.LOADING:
            deployment.loading_s = now
        elif known and claim.status is DeploymentStatus.LOADED:
            deployment.loaded_s = now
            deployment.takes_usage_option = None  # it may be another engine now
        self._owner.index.moved(deployment, before if known else None)

    def _report_lost_engines(self) -> None:
        """Reports the engines that the agent has just declared lost to those with requests there."""
        now = self._owner.clock()
        for deployment in list(self.deployments.values()):
            if deployment.status is not DeploymentStatus.FAILED:
                deployment.lost_s = None
            elif deployment.lost_s is None:
                deployment.lost_s = now
                self._owner.index.engine_lost(deployment)

    def _unlist(self, deployment: Deployment) -> None:
        deployment.listed = False
        self._owner.index.update(deployment)
        if not deployment.in_flight:
            self._drop(deployment)

    def _drop(self, deployment: Deployment) -> None:
        if self.deployments.get(deployment.id) is deployment:
            del self.deployments[deployment.id]

    def _level(self, key: str) -> int:
        return self._levels.get(key, 0)

    def _update_all(self) -> None:
        for deployment in list(self.deployments.values()):
            self._owner.index.update(deployment)
