"""The input and output of placement: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from gateway.domain.request import Tier

NEVER = float("-inf")


class LoadState(Enum):
    """Where a model is in its life at one agent."""

    UNLOADED = auto()
    """Not loaded; takes no memory."""
    LOADING = auto()
    """Being loaded, or its agent was told to load it."""
    LOADED = auto()
    UNLOADING = auto()
    """Its agent was told to unload it; it is still in the memory."""


@dataclass(frozen=True, slots=True)
class LoadableDeployment:
    """One deployment that its agent loads and unloads when told. Times are of the clock of ``now``."""

    key: str
    agent: str
    model: str
    load_state: LoadState
    memory_bytes: int | None = None
    """What it takes while it is not ``UNLOADED``; None: not known, the agent will say whether it fits."""
    load_s: float = 60.0
    """How long loading takes, as stated or measured."""
    tflops: float = 0.0
    """Speed of its device: the faster is taken first."""
    running: int = 0
    used_s: float = NEVER
    """When a request began or ended there last."""
    loaded_s: float = NEVER
    """When it was seen to become loaded; ``NEVER`` for one that was loaded before the gateway saw it."""
    pinned: bool = False
    """Never unloaded for another."""


@dataclass(frozen=True, slots=True)
class AgentDeployments:
    """One agent and all its places. ``memory_bytes`` is for all of them together; None: not known."""

    agent: str
    memory_bytes: int | None
    places: tuple[LoadableDeployment, ...]
    running: int = 0
    """Requests it runs in all, those of models it does not load itself included."""


@dataclass(frozen=True, slots=True)
class PlacementDemand:
    """What waits for one model.

    ``keys`` are the places that would do: for those whom nothing serves, where there are any, and for all
    otherwise. ``served`` says that something serves it, or will in a moment; ``wait_s`` is then how long
    the last in line will probably wait, beside what is being loaded already.
    """

    model: str
    keys: frozenset[str]
    oldest_s: float
    """Since when the one waits who came first."""
    requests: int = 1
    tier: Tier = Tier.STANDARD
    """The most urgent that waits."""
    served: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """The decision to load ``key``, and why."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class UnloadDecision:
    """The decision to unload ``key``, which runs nothing, and why."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class NotLoadable:
    """No place can load a model. ``why`` is for people; trying again makes sense after ``retry_s`` seconds,
    or not at all as things are (None)."""

    why: str
    retry_s: float | None


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """What to do now, and what will come of it."""

    decisions: tuple[LoadDecision | UnloadDecision, ...] = ()
    closing: frozenset[str] = frozenset()
    """Places that get no new request, so that they can be unloaded for another once theirs are done; those
    to be unloaded now are among them. Whoever is not among them gets requests again."""
    ready_s: Mapping[str, float] = field(default_factory=dict)
    """For models that nothing serves: in how many seconds something will, if that is known."""
    not_loadable: Mapping[str, NotLoadable] = field(default_factory=dict)
    """For models that nothing serves: why they cannot be loaded."""
    look_again_s: float | None = None
    """When something could be decided that cannot now, though nothing happens; None for never."""
