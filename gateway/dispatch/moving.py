"""Moves streams away from an agent that is to end: each gives its slot back and goes on at another agent,
from where it was, as one that is preempted does.

Only so many are moved as have a slot elsewhere at once: the others go on where they are. Agents that could go
on with these are told of them, so that slots which they lend to other processes of the gateway, and which lie
idle there, come to this one. Answers in one piece are not moved, for they would begin anew.
"""

from enum import Enum
from typing import Protocol

from msgspec import structs

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.exchange import RequestExchange
from gateway.fleet.model_index import ModelIndex
from gateway.fleet.registry import Registry
from gateway.scheduling.base import DeploymentConstraints

LACKING_S = 3.0
"""Agents are told for so long of streams that have no slot elsewhere: longer than the pause after which they
are to be moved again."""


class Lender(Protocol):
    """Where slots of other processes are asked for; :class:`gateway.cluster.demand.DemandSender`."""

    def borrow(self, model: str, slots: int, for_s: float) -> None: ...


class _Outcome(Enum):
    STAYS = "it cannot go on elsewhere, or not now"
    MOVES = "it goes on elsewhere"
    LACKS_SLOT = "it could go on elsewhere, if a slot were free there"


def move_streams(registry: Registry, index: ModelIndex, agent: str, now: float, lender: Lender) -> int:
    """Have the streams at ``agent``, which must get no new work, go on elsewhere, as far as there is room;
    how many did. To be called again until none is left. On the event loop."""
    moved: dict[str, int] = {}
    lacking: dict[str, int] = {}
    for session in registry.sessions:
        if session.principal.name != agent or session.takes_work:
            continue
        for stream in list(session.endpoint.streams.values()):
            attempt = stream.handler
            if not isinstance(attempt, Attempt):
                continue
            model, outcome = attempt.request.model, _move(attempt, index, moved, now)
            if outcome is _Outcome.MOVES:
                moved[model] = moved.get(model, 0) + 1
            elif outcome is _Outcome.LACKS_SLOT:
                lacking[model] = lacking.get(model, 0) + 1
    for model in moved | lacking:
        lender.borrow(model, lacking.get(model, 0), LACKING_S)
    return sum(moved.values())


def _move(attempt: Attempt, index: ModelIndex, moved: dict[str, int], now: float) -> _Outcome:
    exchange, request = attempt.owner, attempt.request
    if not isinstance(exchange, RequestExchange) or attempt.given_up or not request.streaming:
        return _Outcome.STAYS
    taken, fit = moved.get(request.model, 0), DeploymentConstraints.of(request)
    if exchange.answering:
        fit = structs.replace(fit, continuing=True, version=attempt.deployment.version or fit.version)
    if index.free(request.model, fit, taken + 1) <= taken:
        return _Outcome.LACKS_SLOT if index.someone_else(request.model, fit) else _Outcome.STAYS
    moves = not exchange.reads_first(attempt, _nothing) and exchange.preempt(attempt, now)
    return _Outcome.MOVES if moves else _Outcome.STAYS


def _nothing() -> None:
    """What has been read of an answer is used when this is called again."""
