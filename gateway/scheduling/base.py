"""The scheduler's interface: plain data and ``now`` in, decisions out.

Nothing here or in a policy does I/O, reads a clock or draws random numbers. The caller carries the decisions
out; a policy never changes what it was given. A policy learns only through its hooks, so equal input after an
equal history gives equal output.

Who keeps what: the owner of the deployments (in production the index, in the simulator the fleet) fills in
every field of :class:`DeploymentView`; :class:`~gateway.scheduling.scheduler.Scheduler` keeps ``load``, calls
the hooks, and learns from outcomes. An owner that uses the scheduler calls nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from gateway.domain.fingerprints import BLOCK_BYTES
from gateway.domain.request import Request, Tier
from gateway.domain.residency import Residency
from gateway.scheduling.load import DeploymentLoad
from shared.protocol.routes import ANY_ROUTE, route_of

_ANYTHING = frozenset({ANY_ROUTE})
_NOTHING = frozenset[str]()

PREFILL_WORK = 0.02
"""Work of one input token beside one output token: prefill runs some fifty times as fast as decoding."""

FIXED_WORK = 8.0
"""Work of a request before its first token, in output tokens."""

NO_CAP = 1 << 30
"""More slots than any deployment has."""

BLOCK_TOKENS = BLOCK_BYTES // 4
"""Tokens in a block of ``PendingRequest.prefix`` where nothing better is known."""


def estimated_work(input_tokens: int, output_tokens: int) -> float:
    """What a request costs, in output tokens, while nothing is known of its model's speed."""
    return FIXED_WORK + PREFILL_WORK * input_tokens + output_tokens


class DeploymentConstraints(Struct, frozen=True, gc=False):
    """What decides which deployments may take a request. Requests of equal fit are interchangeable."""

    route: str
    avoid: frozenset[str] = frozenset()
    version: str | None = None
    continuing: bool = False
    where: Residency | None = None
    agent: str | None = None

    @classmethod
    def of(cls, request: Request, avoid: Iterable[str] = ()) -> "DeploymentConstraints":
        avoided = frozenset(avoid) if avoid else _NOTHING
        return cls(request.need, avoided, request.version, request.continuing, request.where, request.agent)


class PendingRequest(Struct, frozen=True, gc=False):
    """A request that waits; a sequence of these is in order of turns.

    ``number`` is its ticket's. ``avoid`` holds the keys of deployments it must not go to. With ``version``
    only deployments of that version will do, with ``where`` only those whose labels it allows, whatever else
    speaks for another; one that is ``continuing`` wants a deployment that can go on with an answer of its
    route which another one began.

    ``input_tokens`` and ``output_tokens`` are estimates, the latter of what will be
    written, not of what may be. ``prefix`` is the chain of fingerprints of the prompt's whole blocks,
    the first block first: two prompts have equal members exactly as far as they are equal.
    ``block_tokens`` is how many tokens such a block holds. ``ttft_s`` is what the client wants its first
    token within, from ``arrived_s``.
    """

    number: int
    route: str
    work: float
    arrived_s: float
    tier: Tier = Tier.STANDARD
    tenant: str = ""
    deadline_s: float | None = None
    session_key: str | None = None
    avoid: frozenset[str] = frozenset()
    version: str | None = None
    continuing: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    prefix: tuple[int, ...] = ()
    block_tokens: float = BLOCK_TOKENS
    ttft_s: float | None = None
    where: Residency | None = None
    agent: str | None = None
    """Only deployments of this agent will do."""

    def is_bound(self) -> bool:
        """Whether anything but its route decides which deployments may take it."""
        return bool(self.avoid or self.continuing) or not (
            self.version is None and self.where is None and self.agent is None
        )

    @property
    def fit(self) -> DeploymentConstraints:
        """What decides which deployments may take it."""
        return DeploymentConstraints(
            self.route, self.avoid, self.version, self.continuing, self.where, self.agent
        )


@dataclass(slots=True, eq=False)
class DeploymentView:
    """A deployment as policies see it. Kept up to date by its owner, only read by policies.

    ``outstanding`` is the estimated work (see :func:`estimated_work`) of what it runs; ``speed`` its work per
    second and slot, relative to others. ``usable`` is False while it may take nothing whatever its slots say:
    not loaded, draining, resting after a failure, its session over, suspended or full. ``cap`` is how many of
    its slots its health lets it use; one on ``trial`` takes one request to show that it is well again, and
    should get it soon, whatever its load. ``continues`` maps routes to the way it goes on with another's
    answer. ``labels`` are those bound to its agent's identity. ``routes`` names what it does, without what it
    ``lacks``: paths of these routes that its engine does not have (:mod:`shared.protocol.routes`). Requests
    with a need in ``translated`` are translated for its engine; one that needs no translation is preferred.

    ``device`` is what it runs on: GPU names as NVML gives them, or a class of
    :mod:`gateway.scheduling.learning.devices`. ``rtt_s`` is the measured round trip of its tunnel.
    ``health_factor``, over 0 to 1, divides what is predicted of it: 0.5 makes it look twice as slow.
    ``kv_free_tokens`` is how many tokens of context it has room for, of ``kv_tokens`` in all; None where it
    does not say. ``loaded``
    is False for one that is usable but has to load its model first, which takes ``load_s`` from now
    (None: what such loads took before). ``load`` is what it runs, kept by the scheduler.
    """

    key: str
    agent: str
    model: str
    routes: frozenset[str]
    slots: int = 0
    in_flight: int = 0
    outstanding: float = 0.0
    speed: float = 1.0
    usable: bool = True
    cap: int = NO_CAP
    trial: bool = False
    version: str = ""
    continues: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    rtt_s: float = 0.0
    health_factor: float = 1.0
    kv_free_tokens: int | None = None
    kv_tokens: int | None = None
    loaded: bool = True
    load_s: float | None = None
    load: DeploymentLoad = field(default_factory=DeploymentLoad)
    labels: Mapping[str, str] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    translated: frozenset[str] = frozenset()

    @property
    def free(self) -> int:
        """Requests it takes now, 0 or more."""
        if not self.usable:
            return 0
        free = (self.slots if self.slots < self.cap else self.cap) - self.in_flight
        return free if free > 0 else 0

    def supports(self, need: str) -> bool:
        """Whether its engine has what a request needs: a route, or one of its paths."""
        routes = self.routes
        if need in routes:
            return True
        if need in self.lacks:
            return False
        return routes == _ANYTHING or ("/" in need and route_of(need) in routes)

    def suits(self, fit: DeploymentConstraints) -> bool:
        """Whether it may take a request of this fit, now or later; the fit's ``avoid`` is not considered."""
        need, version = fit.route, fit.version
        if not (need in self.routes or self.supports(need)):
            return False
        if fit.agent is not None and fit.agent != self.agent:
            return False
        if fit.where is not None and not fit.where.allows(self.labels):
            return False
        if fit.continuing and need not in self.continues:
            return False
        return version is None or version == self.version

    def may_take(self, item: PendingRequest) -> bool:
        """Whether ``item`` may go there, now or ever."""
        return self.key not in item.avoid and self.suits(item.fit)


class Assignment(Struct, frozen=True, gc=False):
    """The decision that the request ``number`` goes to the deployment ``key``."""

    number: int
    key: str


class Outcome(Struct, frozen=True, gc=False):
    """What became of a request at one deployment; times in seconds since it was placed there.

    ``first_token_s`` is None where none was seen, as of answers in one piece. Token counts are what the
    engine reported, None where it reported nothing. ``ok`` is False for one that failed or was given up:
    nothing is learnt of speeds from it.
    """

    ok: bool
    total_s: float
    first_token_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class Policy(Protocol):
    """How to choose among the deployments of one model. One instance serves one model.

    The hooks do nothing unless a policy needs them; a policy must also work when they are never called.
    """

    name: str

    look_again_s: float | None = None
    """After ``assign``: when it wants to be asked again though nothing has changed, because it let a request
    wait with a slot free; None if it did not."""

    rests_until_s: float = 0.0
    """Until then ``assign`` assigns nothing, whichever requests wait, unless a request ends or a deployment
    is added."""

    def assign(
        self, waiting: Sequence[PendingRequest], deployments: Sequence[DeploymentView], now: float
    ) -> list[Assignment]:
        """Who goes where, now. Both sequences are of one model.

        ``waiting`` is in order of turns; one that fits nowhere must not hold back those behind it.
        ``deployments`` are those with a slot free, or of those all that are not on trial, perhaps
        others. Assigns each request at most once, to a deployment that suits it, is not avoided, and has
        a slot free after the assignments before it; assigns as many as fit, but for those it lets wait,
        until ``look_again_s`` at the latest, for a deployment that will be free soon and is predicted to
        finish them earlier. Equal input after an equal history gives equal output.
        """
        ...

    def deployment_added(self, view: DeploymentView, now: float) -> None:
        """A deployment of the model is there. ``view`` is kept up to date until it is ``gone``."""
        return

    def deployment_removed(self, key: str, now: float) -> None:
        """The deployment ``key`` is no more."""
        return

    def placed(self, item: PendingRequest, key: str, now: float) -> None:
        """``item`` was really given to the deployment ``key``; its ``load`` does not count it yet."""
        return

    def finished(self, item: PendingRequest, key: str, outcome: Outcome, now: float) -> None:
        """``item`` is over at the deployment ``key``; its ``load`` no longer counts it."""
        return
