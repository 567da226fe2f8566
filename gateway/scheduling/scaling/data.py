"""What a decision on replicas is made of, and what it says. Plain data.

A replica is one agent that serves a model. Its class is that of its device
(:func:`gateway.scheduling.learning.devices.device_class`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """What the operator wants for one model."""

    first_token_s: float = 2.0
    """99 of 100 requests shall have their first token so soon."""
    latency_s: float | None = None
    """The same for whole answers; None: they may take as long as they take."""
    utilisation: float = 0.8
    """The share of what replicas can do that they shall be given at most."""
    queue_s: float = 30.0
    """What waits when a new replica is ready shall have begun after so long."""
    batch_queue_s: float = 3600.0
    """The same for requests of the tier batch."""
    most_wait_s: float = 60.0
    """So long a request waits at most before it is refused: a queue grows no longer than that."""
    min_replicas: int = 1
    """Replicas of all classes together. 0: none is kept when nothing was asked for ``idle_s``."""
    max_replicas: int = 100
    stabilisation_s: float = 300.0
    """Fewer are wanted only when no more were needed for so long."""
    cooldown_s: float = 60.0
    """Time between a change and the next one to fewer."""
    idle_s: float = 900.0


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """What one class of device can do for a model, and what there is of it."""

    device: str
    slots: int
    """Of one replica."""
    request_s: float
    """Device-seconds of a mean request with all slots taken: a replica does 1 / ``request_s`` a second."""
    first_s: float = 0.0
    """Until the first token of a long request that does not wait."""
    total_s: float = 0.0
    """Until the end of a long answer with all slots taken."""
    measured: bool = True
    """Whether the speed was measured on this class; else it is scaled or guessed."""
    ready: int = 0
    starting: int = 0
    lead_s: float = 180.0
    """From when a replica is wanted until it is ready."""
    price_hour: float | None = None
    """Of one replica; None: not known."""
    min_replicas: int = 0
    max_replicas: int = 1000
    forecast_per_s: float = 0.0
    """Requests in a second that are foreseen for when a replica that is wanted now is ready; 0: nothing is
    foreseen, or may act."""
    usual_first_s: float | None = None
    """Until the first token of a mean request that does not wait; None: not known."""

    @property
    def present(self) -> int:
        """Replicas that are there or on their way."""
        return self.ready + self.starting

    @property
    def per_s(self) -> float:
        """Requests that one replica does in a second."""
        return 1.0 / self.request_s


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What is asked of a model. ``arriving_per_s`` and ``waiting`` leave the tier batch out."""

    arriving_per_s: float = 0.0
    rising_per_s2: float = 0.0
    """How fast ``arriving_per_s`` rises; 0 where it does not."""
    waiting: int = 0
    batch_waiting: int = 0
    in_flight: int = 0
    idle_s: float = 0.0
    """Since something was asked for, waited or ran."""

    @property
    def active(self) -> bool:
        """Something waits, runs or is asked for."""
        return bool(self.waiting or self.batch_waiting or self.in_flight) or self.arriving_per_s > 0


@dataclass(frozen=True, slots=True)
class ScalingOption:
    """What it would take if only replicas of one class were added."""

    device: str
    replicas: int
    lasting: int
    """So many would do once the queue is worked off."""
    cost_hour: float | None
    """Of all replicas of the model then; None: a price is missing."""
    meets: bool
    why: str


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """How many replicas are needed now."""

    wanted: Mapping[str, int]
    """By class."""
    why: str
    options: tuple[ScalingOption, ...] = ()
    queued_gpu_s: Mapping[str, float] = field(default_factory=dict)
    """What waits, in seconds of one device of each class."""
    arriving_gpu_s: Mapping[str, float] = field(default_factory=dict)
    """What is asked for in a second, in the same way."""
