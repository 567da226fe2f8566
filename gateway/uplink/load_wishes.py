"""The parent's wishes that models be loaded: kept up here until the models are loaded, or cannot be.

The parent says what it wants loaded; which agent loads it, when, and what has to go for it, this gateway
decides as for requests of its own clients. A wish counts as one waiting request.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.dispatch.dispatcher import Dispatcher
from gateway.scheduling.base import DeploymentConstraints

HOLD_S = 300.0
"""A wish is kept for so long at most while nothing is loaded for it."""

COPY_HOLD_S = 30.0
"""The same for one more copy of a model that is loaded: the parent may have one loaded elsewhere."""

NO_ROOM = "no agent had room for it within {:.0f} s"

NOT_ON_DEMAND = "this gateway does not load models on demand"


class ModelLoads(Protocol):
    """What has models loaded here."""

    def wish(self, model: str, fit: DeploymentConstraints, beyond: int) -> str | None:
        """Have a model loaded for requests of that fit at one more place than ``beyond``, for half a minute.
        Why it cannot be loaded; None: it may be."""

    def copies(self, model: str, fit: DeploymentConstraints) -> int:
        """How many places for such requests have it loaded, or are loading it."""


@dataclass(frozen=True, slots=True)
class DispatcherLoads:
    """Has models loaded by the placement of ``dispatcher``. Implements :class:`ModelLoads`."""

    dispatcher: Dispatcher

    def wish(self, model: str, fit: DeploymentConstraints, beyond: int) -> str | None:
        if (loads := self.dispatcher.loads) is None:
            return NOT_ON_DEMAND
        return loads.wish(model, fit, self.dispatcher.timers.time(), beyond)

    def copies(self, model: str, fit: DeploymentConstraints) -> int:
        return 0 if self.dispatcher.loads is None else self.dispatcher.loads.copies(model, fit)


class NoLoads:
    """Where nothing is loaded on demand. Implements :class:`ModelLoads`."""

    def wish(self, model: str, fit: DeploymentConstraints, beyond: int) -> str | None:
        return NOT_ON_DEMAND

    def copies(self, model: str, fit: DeploymentConstraints) -> int:
        return 0


@dataclass(slots=True)
class _Wish:
    model: str
    fit: DeploymentConstraints
    beyond: int
    """One more place is to have it loaded than so many."""
    hold_s: float
    until_s: float
    why_not: str | None = None
    """It cannot be; said at the next look, so that the parent sees it begin and fail."""


class LoadWishes:
    """By the id of what is wanted. Bounded by what is offered."""

    def __init__(self, loads: ModelLoads, clock: Callable[[], float]) -> None:
        self._loads = loads
        self._clock = clock
        self._wishes: dict[str, _Wish] = {}
        self._failed: dict[str, str] = {}

    def begin(self, group: str, model: str, fit: DeploymentConstraints, *, copy: bool = False) -> None:
        """The parent wants it loaded, for requests of this fit. ``copy``: at one more place than now."""
        self._failed.pop(group, None)
        if group not in self._wishes:
            beyond = max(1, self._loads.copies(model, fit)) if copy else 0
            hold_s = COPY_HOLD_S if copy else HOLD_S
            wish = self._wishes[group] = _Wish(model, fit, beyond, hold_s, self._clock() + hold_s)
            wish.why_not = self._loads.wish(model, fit, beyond)

    def end(self, group: str) -> None:
        """It is loaded, is not offered any more, or is not wanted. Idempotent."""
        self._wishes.pop(group, None)
        self._failed.pop(group, None)

    def wanted(self, group: str) -> bool:
        return group in self._wishes

    def why_failed(self, group: str) -> str | None:
        """Why it was not loaded when the parent wanted it last."""
        return self._failed.get(group)

    def look(self, is_loading: Callable[[str], bool]) -> bool:
        """To be called every second: repeat what is still wanted. Whether something has failed."""
        failed = False
        for group, wish in list(self._wishes.items()):
            if is_loading(group):
                wish.until_s = self._clock() + wish.hold_s
                continue
            why_not = wish.why_not or self._loads.wish(wish.model, wish.fit, wish.beyond)
            if why_not is None and self._clock() >= wish.until_s:
                why_not = NO_ROOM.format(wish.hold_s)
            if why_not is not None:
                failed = True
                del self._wishes[group]
                self._failed[group] = why_not
        return failed
