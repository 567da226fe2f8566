"""Room for context during one round, for policies that look at nothing else of what a request costs.

Small ones would take what comes free for ever before a large one. So what found no room for ``RESERVE_S`` has
the deployment that has most, of those that could ever hold it, kept free for it: one for each round.
"""

from collections.abc import Iterable

from gateway.scheduling.base import DeploymentView, Waiting

RESERVE_S = 2.0


class Context:
    """What was given out so far, in tokens, and for whom something is kept."""

    __slots__ = ("_given", "_now", "_reserved")

    def __init__(self, now: float) -> None:
        self._now = now
        self._given: dict[str, int] = {}
        self._reserved: str | None = None

    def fits(self, item: Waiting, view: DeploymentView) -> bool:
        """Whether the context of ``item`` fits there."""
        free_tokens = view.kv_free_tokens
        if free_tokens is None:
            return True
        if view.key == self._reserved:
            return False
        return item.input_tokens + item.output_tokens <= free_tokens - self._given.get(view.key, 0)

    def give(self, item: Waiting, view: DeploymentView) -> None:
        """``item`` goes there."""
        if view.kv_free_tokens is not None:
            taken = self._given.get(view.key, 0)
            self._given[view.key] = taken + item.input_tokens + item.output_tokens

    def reserve(self, item: Waiting, views: Iterable[DeploymentView]) -> None:
        """``item`` fits none of ``views``, which have slots free."""
        if self._reserved is not None or self._now - item.arrived_s < RESERVE_S:
            return
        tokens = item.input_tokens + item.output_tokens
        holding = [
            view
            for view in views
            if view.kv_free_tokens is not None
            and (view.kv_tokens is None or view.kv_tokens >= tokens)
            and view.may_take(item)
        ]
        if holding:
            self._reserved = max(holding, key=lambda view: (view.kv_free_tokens or 0, view.key)).key
