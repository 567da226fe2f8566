"""Which deployments may take a request in one round: slots, demands of the request, room for its context.

Small requests would take what comes free for ever before one with a large context. So a request that found no
room for ``RESERVE_S`` has a deployment kept free for it: of those that could ever hold it the one with most
room, and one deployment in each round.
"""

from collections.abc import Callable, Iterable

from gateway.scheduling.base import DeploymentView, PendingRequest

RESERVE_S = 2.0


def eligible_deployments(
    item: PendingRequest, views: Iterable[DeploymentView], has_room: Callable[[DeploymentView], bool]
) -> list[DeploymentView]:
    """Those of ``views`` that may take ``item`` now. ``has_room`` is asked of those that state how much
    context they have room for."""
    route = item.route
    found = [
        view
        for view in views
        if view.usable
        and view.in_flight < view.slots
        and view.in_flight < view.cap
        and (route in view.routes or view.supports(route))
        and (view.kv_free_tokens is None or has_room(view))
    ]
    if not item.is_bound():
        return found
    fit = item.fit
    return [view for view in found if view.key not in fit.avoid and view.suits(fit)]


def native_first(need: str, views: list[DeploymentView]) -> list[DeploymentView]:
    """Of ``views``, which all have room for a request of this need, those that take it as it is and are
    loaded, and those on trial; all where none of the former is there."""
    if len(views) < 2:
        return views
    native = [view for view in views if need not in view.translated]
    if len(native) == len(views) or not any(view.loaded for view in native):
        return views
    return [view for view in views if view.trial or (view.loaded and need not in view.translated)]


def reservation(
    item: PendingRequest,
    views: Iterable[DeploymentView],
    could_hold: Callable[[DeploymentView], bool],
    now: float,
) -> str | None:
    """The key of the deployment to keep free for ``item``, whose context fits none of ``views`` now; None
    before it has waited for ``RESERVE_S``, and where none ``could_hold`` it."""
    if now - item.arrived_s < RESERVE_S:
        return None
    holding = [
        view for view in views if view.kv_free_tokens is not None and could_hold(view) and view.may_take(item)
    ]
    return max(holding, key=lambda view: (view.kv_free_tokens or 0, view.key)).key if holding else None


class ContextRoom:
    """The tokens of context given out so far in one round, for policies that look at nothing else of what a
    request costs."""

    __slots__ = ("_given", "_now", "_reserved")

    def __init__(self, now: float) -> None:
        self._now = now
        self._given: dict[str, int] = {}
        self._reserved: str | None = None

    def fits(self, item: PendingRequest, view: DeploymentView) -> bool:
        """Whether the context of ``item`` fits there."""
        free_tokens = view.kv_free_tokens
        if free_tokens is None:
            return True
        if view.key == self._reserved:
            return False
        return item.input_tokens + item.output_tokens <= free_tokens - self._given.get(view.key, 0)

    def give(self, item: PendingRequest, view: DeploymentView) -> None:
        """``item`` goes there."""
        if view.kv_free_tokens is not None:
            taken = self._given.get(view.key, 0)
            self._given[view.key] = taken + item.input_tokens + item.output_tokens

    def reserve(self, item: PendingRequest, views: Iterable[DeploymentView]) -> None:
        """``item`` fits none of ``views``, which have slots free."""
        if self._reserved is None:
            tokens = item.input_tokens + item.output_tokens
            self._reserved = reservation(
                item, views, lambda view: view.kv_tokens is None or view.kv_tokens >= tokens, self._now
            )
