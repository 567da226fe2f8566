"""One model as served, or to be served, by one agent's engine."""

from dataclasses import dataclass, field
from typing import Protocol

import structlog

from gateway.quota.usage import GpuShare
from gateway.scheduling.base import DeploymentView
from gateway.scheduling.health import DeploymentHealth
from shared.protocol.batch_sizes import BatchSizes
from shared.protocol.endpoint import SessionEndpoint
from shared.protocol.gpu_time import GpuClock
from shared.protocol.messages import DeploymentStatus
from shared.protocol.work import WorkScale


class DeploymentOwner(Protocol):
    """The session a deployment belongs to; :class:`gateway.fleet.session.AgentSession`."""

    endpoint: SessionEndpoint
    full: bool
    closed: bool
    suspended: bool
    """Its tunnel is gone or silent, and it is kept: what runs may go on, nothing new is sent."""

    tells_gpu_s: bool
    """Its agent says how many GPU-seconds a request used."""

    tells_others: bool
    """Its agent says what runs there for other processes, and is told what requests are expected to take."""

    deployments: "dict[str, Deployment]"
    """The owner's deployments, by id."""

    @property
    def takes_work(self) -> bool: ...
    @property
    def model_memory_bytes(self) -> int | None: ...
    def set_full(self, full: bool) -> None: ...
    def end(self) -> None: ...
    def stream_closed(self, deployment: "Deployment") -> None: ...


_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class Deployment(DeploymentView):
    """One model as served by one agent's engine, as long as the agent's session lasts.

    ``key`` is ``agent/id``. ``slots`` is the level the agent granted, whatever the rest says.
    """

    id: str
    session: DeploymentOwner
    status: DeploymentStatus = DeploymentStatus.LOADED
    listed: bool = True
    """Named by the agent's latest state. One that is not goes away with its last stream."""
    failures: int = 0
    """Failures in a row."""
    running: int = 0
    """Requests that its engine ran when its agent said so last, from all processes of the gateway."""
    usable: bool = False
    health: DeploymentHealth | None = None
    settled: bool = False
    """It is usable, and its health and its level let it use all its slots: while nothing is said of it, what
    it takes and gives back changes nothing but how many are free."""
    shut: bool = False
    """Its health lets it take nothing, for longer than a short rest."""
    device: str = ""
    """The GPUs it runs on. Only deployments on the same GPUs are compared for their speed."""
    counted_slots: int = 0
    """How many slots the index has counted for it."""
    counted_version: str = ""
    """The version for which the index counted them."""
    managed: bool = False
    """Its agent loads and unloads it on command."""
    memory_bytes: int | None = None
    reload_s: float | None = None
    """How long loading takes, as its agent says."""
    load_progress: float | None = None
    promised_slots: int = 0
    """How many slots it will have once it is loaded, as its agent says."""
    reason: str = ""
    """What its agent says about its status."""
    kind: str = ""
    """The kind of its engine, as its agent says; empty: not known."""
    lost_s: float | None = None
    """When its agent declared its engine lost, on the gateway's clock; None while it is not."""
    loading_s: float = float("-inf")
    loaded_s: float = float("-inf")
    """When it was seen to begin loading, and to be loaded."""
    used_s: float = float("-inf")
    """When a request last began or ended there; kept only where it is ``managed``."""
    closing: bool = False
    """It gets nothing new, because it is to be unloaded."""
    told_to_go: bool = False
    """The command to unload it was sent."""
    takes_usage_option: bool | None = None
    """Whether its engine takes the option that puts usage into a stream; None: not known yet."""
    stateful: bool = False
    """Requests for its own paths that belong together must all go to it."""
    gpu_clock: GpuClock = field(default_factory=GpuClock)
    """Shares its time out to the requests that this gateway has there at once."""
    gpu_share: GpuShare = field(default_factory=GpuShare)
    context_tokens: int | None = None
    """The most tokens of one request, prompt and answer together."""
    capabilities: tuple[str, ...] = ()
    """What its engine says of the model, in the engine's words."""
    work_scale: WorkScale | None = None
    """How much work a request for pictures or videos is there; None: its agent does not say."""
    via: tuple[str, ...] = ()
    """Where its agent is a gateway: the ids of the gateways that it is served through (PROTOCOL §7.6)."""
    batches: BatchSizes | None = None
    """Of its engine since that began, as its agent said last; None: it does not say."""
    asked_as: str = ""
    """Where its agent is a gateway: the id of this gateway, which OPEN names; else empty."""

    @property
    def leaving(self) -> bool:
        """It is being unloaded."""
        by_itself = self.managed and self.slots == 0 and self.reason != ""
        return self.status is DeploymentStatus.LOADED and (self.told_to_go or by_itself)

    @property
    def loadable(self) -> bool:
        """It is not loaded, and its agent would load it."""
        out = self.status in (DeploymentStatus.LOADABLE, DeploymentStatus.FAILED)
        return out and self.managed and self.listed and self.session.takes_work

    @property
    def most_tokens(self) -> int | None:
        """The most tokens a request can have there; None: not known."""
        known = [each for each in (self.context_tokens, self.kv_tokens) if each]
        return min(known, default=None)

    def note_batches(self, said: BatchSizes | None) -> BatchSizes | None:
        """What is new of the batches of its engine, whose agent says that these are all. The first in a
        session is none: others may have heard of those."""
        before, self.batches = self.batches, said
        return None if said is None or before is None else said.since(before)

    def note_kv(self, kv_use: float | None, running: int = 0) -> None:
        """Notes how many requests its engine runs and which share of its room for context they use.

        With ``kv_use`` None the engine does not say, and what was placed there counts.
        """
        self.running = running
        if self.kv_tokens is None:
            self.kv_free_tokens = None
        elif not (self.in_flight or running):
            self.kv_free_tokens = self.kv_tokens
        elif kv_use is None:
            self.kv_free_tokens = max(0, self.kv_tokens - self.load.kv_tokens)
        else:
            self.kv_free_tokens = int(self.kv_tokens * min(1.0, max(0.0, 1.0 - kv_use)))

    def hold_kv(self, tokens: int) -> None:
        """Counts a request of so many tokens that was placed there, until :meth:`note_kv` says what is so."""
        if self.kv_free_tokens is not None:
            self.kv_free_tokens = max(0, self.kv_free_tokens - tokens)

    def free_kv(self, tokens: int) -> None:
        """Counts a request of so many tokens as over; ``in_flight`` and ``load`` still count it."""
        if self.kv_free_tokens is not None and self.kv_tokens is not None:
            others_run = self.in_flight > 1 or self.load.count > 1
            free_tokens = self.kv_free_tokens + tokens if others_run else self.kv_tokens
            self.kv_free_tokens = min(free_tokens, self.kv_tokens)

    @property
    def healthy(self) -> bool:
        """It is healthy, though it may be new."""
        return self.health is None or self.health.healthy

    @property
    def promising(self) -> bool:
        """It serves or will soon, so requests may wait for it; also while its session is suspended."""
        return (
            self.listed
            and self.session.takes_work
            and self.status in (DeploymentStatus.LOADED, DeploymentStatus.LOADING)
        )

    def compute_usable(self) -> bool:
        return (
            self.listed
            and self.status is DeploymentStatus.LOADED
            and self.session.takes_work
            and not self.session.suspended
            and not self.session.full
            and not self.closing
        )


def log_status(deployment: Deployment, before: DeploymentStatus | None) -> None:
    """Write down that the agent says another status than ``before``; of a new one only a failure."""
    if before is None and deployment.status is not DeploymentStatus.FAILED:
        return
    facts = {"deployment": deployment.key, "model": deployment.model, "status": deployment.status.value}
    if before is not None:
        facts["before"] = before.value
    if deployment.reason:
        facts["reason"] = deployment.reason
    _log.info("deployment_status", **facts)
