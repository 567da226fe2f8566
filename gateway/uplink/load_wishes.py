"""The parent's wishes that models be loaded: kept up here until the models are loaded, or cannot be.

The parent says what it wants loaded; which agent loads it, when, and what has to go for it, this gateway
decides as for requests of its own clients. A wish counts as one waiting request.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.dispatch.dispatcher import Dispatcher
from gateway.scheduling.base import DeploymentConstraints

HOLD_S = 300.0
"""A wish is kept for so long at most while nothing is loaded for it."""

NO_ROOM = f"no agent had room for it within {HOLD_S:.0f} s"

Wish = Callable[[str, DeploymentConstraints], str | None]
"""Has this gateway want a model loaded for requests of that fit, for half a minute. Why it cannot be loaded;
None: it may be."""


NOT_ON_DEMAND = "this gateway does not load models on demand"


def wishes_to(dispatcher: Dispatcher) -> Wish:
    """Has models loaded by the placement of ``dispatcher``."""

    def wish(model: str, fit: DeploymentConstraints) -> str | None:
        if dispatcher.loads is None:
            return NOT_ON_DEMAND
        return dispatcher.loads.wish(model, fit, dispatcher.timers.time())

    return wish


@dataclass(slots=True)
class _Wish:
    model: str
    fit: DeploymentConstraints
    until_s: float
    why_not: str | None = None
    """It cannot be; said at the next look, so that the parent sees it begin and fail."""


class LoadWishes:
    """By the id of what is wanted. Bounded by what is offered."""

    def __init__(self, wish: Wish, clock: Callable[[], float]) -> None:
        self._wish = wish
        self._clock = clock
        self._wishes: dict[str, _Wish] = {}
        self._failed: dict[str, str] = {}

    def begin(self, group: str, model: str, fit: DeploymentConstraints) -> None:
        """The parent wants it loaded, for requests of this fit."""
        self._failed.pop(group, None)
        if group not in self._wishes:
            wish = self._wishes[group] = _Wish(model, fit, self._clock() + HOLD_S)
            wish.why_not = self._wish(model, fit)

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
                wish.until_s = self._clock() + HOLD_S
                continue
            why_not = wish.why_not or self._wish(wish.model, wish.fit)
            if why_not is None and self._clock() >= wish.until_s:
                why_not = NO_ROOM
            if why_not is not None:
                failed = True
                del self._wishes[group]
                self._failed[group] = why_not
        return failed
