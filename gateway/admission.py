"""Now, later or no: whether a request gets a place in the waiting room (SURFACE, HTTP; SCHEDULING §3)."""

from collections.abc import Callable
from dataclasses import replace

import orjson

from gateway.deployments import Availability, ModelIndex
from gateway.domain import Request, Tier
from gateway.errors import BadRequest, DeadlineExceeded, HeadersTooLarge, ModelNotFound, NoDeployment
from gateway.queue import Ticket, WaitingRoom
from shared.limits import CONTROL_PAYLOAD_BYTES

RETRY_AFTER_S = 2.0
"""Told when nothing serves a model: agents that are coming back are back by then."""

HEAD_ROOM_BYTES = CONTROL_PAYLOAD_BYTES - 4096
"""What path and header fields may take in an OPEN frame; the rest is for its other members."""

FIELD_BYTES = 8
"""Quotes, brackets and commas around one header field in JSON."""


class Admission:
    """Lets requests into the waiting room, or says at once why not."""

    def __init__(
        self,
        index: ModelIndex,
        room: WaitingRoom,
        reconnect_grace_s: float,
        yielding: Callable[[str, int], int] = lambda model, slots: 0,
    ) -> None:
        """Requests are let in for ``reconnect_grace_s`` after a model's last deployment went away: an agent
        whose tunnel broke redials at once. ``yielding(model, slots)`` is how many of the model's slots others
        would give back for realtime requests."""
        self._yielding = yielding
        self._index = index
        self._room = room
        self._grace_s = reconnect_grace_s

    def admit(self, request: Request, now: float) -> Ticket:
        """A place in the queue of the request's model.

        Raises HeadersTooLarge, ModelNotFound, NoDeployment (also when the model is served, but only where the
        request may not run), BadRequest when the model is served but not for this route, DeadlineExceeded
        when it is too late already, and QueueFull when the queue is at a bound or the wait predicted is
        longer than the request may wait.
        """
        _check_head(request)
        model = request.model
        availability = self._index.availability(model, request.route, request.where)
        if availability is Availability.UNKNOWN:
            raise ModelNotFound(
                f"The model {model!r} does not exist here; GET /v1/models lists those that do.", param="model"
            )
        if availability is Availability.OTHER_ROUTES:
            raise BadRequest(
                f"The model {model!r} is served, but not for {request.route} requests.",
                param="model",
                code="route_not_supported",
            )
        if availability is Availability.GONE and self.gone_for_good(model, now):
            raise no_deployment(request)
        if availability is Availability.ELSEWHERE and now >= self.hopeless_there_at(model):
            raise not_there(request)
        if request.deadline_s is not None and request.deadline_s <= now:
            raise DeadlineExceeded("The request's deadline had passed before it could be given to an engine.")
        enough = self._room.depth(model) + 1
        capacity = self._index.capacity(model, request.route, enough, request.where, request.version)
        if request.tier is Tier.REALTIME and not capacity.free:
            capacity = replace(capacity, yielding=self._yielding(model, capacity.slots))
        return self._room.enter(request, capacity, now)

    def gone_for_good(self, model: str, now: float) -> bool:
        """Whether nothing serves ``model``, and the time to wait for it to come back is over."""
        gone_at_s = self.hopeless_at(model)
        return gone_at_s is not None and now >= gone_at_s

    def hopeless_there_at(self, model: str) -> float:
        """The same for those who may not run where it is served: what went last may have been for them."""
        record = self._index.models.get(model)
        return 0.0 if record is None else record.left_s + self._grace_s

    def hopeless_at(self, model: str) -> float | None:
        """When those who wait for a model nothing serves are to be sent away. None while it is served."""
        record = self._index.models.get(model)
        if record is None:
            return 0.0
        return None if record.lost_s is None else record.lost_s + self._grace_s


def no_deployment(request: Request) -> NoDeployment:
    """Nothing serves the model."""
    return NoDeployment(
        f"The model {request.model!r} is known, but no agent serves it now; try again later.",
        param="model",
        retry_after_s=RETRY_AFTER_S,
    )


def not_there(request: Request) -> NoDeployment:
    """The model is served, but not where the request may run."""
    return NoDeployment(
        f"The model {request.model!r} is served, but by no agent with {request.where} now, and this request "
        "may run nowhere else; try again later.",
        code="residency_unavailable",
        retry_after_s=RETRY_AFTER_S,
    )


def _check_head(request: Request) -> None:
    """Raises HeadersTooLarge when the request's head might not go into one frame (PROTOCOL §4.1).

    In JSON a character of it takes two bytes at most: what must be quoted, and what is not ASCII.
    """
    size_bytes = len(request.path) + len(request.trace or "")
    for name, value in request.headers:
        size_bytes += len(name) + len(value) + FIELD_BYTES
    if 2 * size_bytes <= HEAD_ROOM_BYTES:
        return
    pieces = (request.path, request.trace or "", *(piece for field in request.headers for piece in field))
    quoted_bytes = sum(len(orjson.dumps(piece)) for piece in pieces) + 4 * len(request.headers)
    if quoted_bytes > HEAD_ROOM_BYTES:
        raise HeadersTooLarge("The request's path and header fields are more than a tunnel carries at once.")
