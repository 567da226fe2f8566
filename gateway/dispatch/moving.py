"""Moves streams away from an agent that is to end: each gives its slot back and goes on at another agent,
from where it was, as one that is preempted does.

Only so many are moved as have a slot elsewhere at once: the others go on where they are. Answers in one piece
are not moved, for they would begin anew.
"""

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.exchange import RequestExchange
from gateway.fleet.model_index import ModelIndex
from gateway.fleet.registry import Registry
from gateway.scheduling.base import DeploymentConstraints


def move_streams(registry: Registry, index: ModelIndex, agent: str, now: float) -> int:
    """Have the streams at ``agent``, which must get no new work, go on elsewhere, as far as there is room;
    how many did. To be called again until none is left. On the event loop."""
    moved: dict[str, int] = {}
    for session in registry.sessions:
        if session.principal.name != agent or session.takes_work:
            continue
        for stream in list(session.endpoint.streams.values()):
            attempt = stream.handler
            if isinstance(attempt, Attempt) and _moves(attempt, index, moved, now):
                moved[attempt.request.model] = moved.get(attempt.request.model, 0) + 1
    return sum(moved.values())


def _moves(attempt: Attempt, index: ModelIndex, moved: dict[str, int], now: float) -> bool:
    exchange, request = attempt.owner, attempt.request
    if not isinstance(exchange, RequestExchange) or attempt.given_up or not request.streaming:
        return False
    taken, fit = moved.get(request.model, 0), DeploymentConstraints.of(request)
    if exchange.answering:
        fit = fit._replace(continuing=True, version=attempt.deployment.version or fit.version)
    if index.free(request.model, fit, taken + 1) <= taken:
        return False
    return not exchange.reads_first(attempt, _nothing) and exchange.preempt(attempt, now)


def _nothing() -> None:
    """What has been read of an answer is used when this is called again."""
