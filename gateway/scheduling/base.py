"""The scheduler's interface: plain data and ``now`` in, decisions out (SCHEDULING).

Nothing here or in a policy does I/O, reads a clock or draws random numbers. The caller carries the decisions
out; a policy never changes what it was given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.domain import Tier

ANY_ROUTE = "any"
"""A deployment with this route takes requests of every route."""

PREFILL_WORK = 0.02
"""Work of one input token beside one output token: prefill runs some fifty times as fast as decoding."""

FIXED_WORK = 8.0
"""Work of a request before its first token, in output tokens."""

NO_CAP = 1 << 30
"""More slots than any deployment has."""


def estimated_work(input_tokens: int, output_tokens: int) -> float:
    """What a request costs, in output tokens (SCHEDULING §2 will learn it per model and device)."""
    return FIXED_WORK + PREFILL_WORK * input_tokens + output_tokens


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits; a sequence of these is in order of turns.

    ``number`` is its ticket's. ``avoid`` holds the keys of deployments it must not go to. With ``version``
    only deployments of that version will do; one that is ``continuing`` wants a deployment that can go on
    with an answer of its route which another one began.
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


@dataclass(slots=True, eq=False)
class DeploymentView:
    """A deployment as policies see it. Kept up to date by its owner, only read by policies.

    ``outstanding`` is the estimated work (see :func:`estimated_work`) of what it runs; ``speed`` its work per
    second and slot, relative to others. ``usable`` is False while it may take nothing whatever its slots say:
    not loaded, draining, resting after a failure, its session over, suspended or full. ``cap`` is how many of
    its slots its health lets it use; one on ``trial`` takes one request to show that it is well again, and
    should get it soon, whatever its load. ``continues`` maps routes to the way it goes on with another's
    answer.
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

    @property
    def free(self) -> int:
        """Requests it takes now, 0 or more."""
        return max(0, min(self.slots, self.cap) - self.in_flight) if self.usable else 0

    def does(self, route: str) -> bool:
        return route in self.routes or ANY_ROUTE in self.routes

    def suits(self, route: str, version: str | None, continuing: bool) -> bool:
        """Whether it may take a request of this kind, now or ever."""
        if not (route in self.routes or ANY_ROUTE in self.routes):
            return False
        return (version is None or version == self.version) and (not continuing or route in self.continues)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The decision that the request ``number`` goes to the deployment ``key``."""

    number: int
    key: str


class Policy(Protocol):
    """How to choose among deployments."""

    name: str

    def assign(
        self, waiting: Sequence[Waiting], deployments: Sequence[DeploymentView], now: float
    ) -> list[Assignment]:
        """Who goes where, now. Both sequences are of one model.

        ``waiting`` is in order of turns; one that fits nowhere must not hold back those behind it.
        Assigns each request at most once, to a deployment that suits it, is not avoided, and has a slot
        free after the assignments before it; assigns as many as fit. Equal input gives equal
        output.
        """
        ...
