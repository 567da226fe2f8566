"""The choice of the policy ``cost`` for one request while there is nothing to wait for, as most often."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.scheduling.base import DeploymentView, PendingRequest
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.policies.completion import Completion
from gateway.scheduling.policies.fitting import native_first
from gateway.scheduling.policies.late_binding import READ_AHEAD_S


class CostPolicy(Protocol):
    """:class:`gateway.scheduling.policies.cost.Cost`."""

    knowledge: Knowledge

    def known_to(self, item: PendingRequest) -> Mapping[str, int]: ...


def choose_at_once(
    item: PendingRequest, deployments: Sequence[DeploymentView], policy: CostPolicy, now: float
) -> DeploymentView | None:
    """Where ``item`` goes that waits alone, if ``deployments`` are all of the model's and none is busy, full,
    on trial or short of room for it: to the cheapest of those that may take it, as a round of ``policy``
    would say. None where it takes a round to say.
    """
    fitting = None if item.is_bound() else _without_alternative(item, deployments, now)
    if not fitting:
        return None
    if len(fitting) > 1:
        fitting = native_first(item.route, fitting)
    elif fitting[0].kv_free_tokens is None:
        return fitting[0]
    known = policy.known_to(item)
    best, best_s, cost_at = None, float("inf"), Completion(item, policy.knowledge, {}, now).cost_s
    for view in fitting:
        if known and view.kv_free_tokens is not None:
            return None  # whether what is cached there finds room is for a round to say
        cost_s = cost_at(view, known.get(view.key, 0) if known else 0)
        if cost_s < best_s or (cost_s == best_s and best is not None and view.key < best.key):
            best, best_s = view, cost_s
    return best


def _without_alternative(
    item: PendingRequest, deployments: Sequence[DeploymentView], now: float
) -> list[DeploymentView] | None:
    """Those that may take ``item``; None where it might wait for another one."""
    fitting, route = [], item.route
    ready_s, context_tokens = now + READ_AHEAD_S, item.input_tokens + item.output_tokens
    for view in deployments:
        free_tokens, in_flight = view.kv_free_tokens, view.in_flight
        if in_flight >= view.slots or view.trial or view.load.ready_s > ready_s:
            return None
        if free_tokens is not None and free_tokens < context_tokens:
            return None
        if view.usable and in_flight < view.cap and (route in view.routes or view.supports(route)):
            fitting.append(view)
    return fitting
