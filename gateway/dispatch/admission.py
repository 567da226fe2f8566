"""Decides whether a request may wait for a deployment, or is refused at once and with which error."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain

import orjson
from msgspec import structs

from gateway.dispatch.placement import LoadWait, Placer
from gateway.domain.engine_paths import EnginePaths
from gateway.domain.errors import (
    NO_DEPLOYMENT_RETRY_S,
    ContextTooLong,
    DeadlineExceeded,
    HeadersTooLarge,
    ModelNotFound,
    NoDeployment,
    QueueFull,
    QueueTimeout,
    RequestError,
    RouteNotSupported,
)
from gateway.domain.request import Request, Tier
from gateway.domain.residency import Residency
from gateway.fleet.availability import Availability
from gateway.fleet.model_index import ModelIndex
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.queue.tickets import Capacity, Ticket
from gateway.scheduling.queue.waiting_room import WaitingRoom
from shared.protocol.limits import CONTROL_PAYLOAD_BYTES
from shared.protocol.routes import ANY_ROUTE

_UNKNOWN, _SERVED, _REALTIME, _GONE = (
    Availability.UNKNOWN,
    Availability.SERVED,
    Tier.REALTIME,
    Availability.GONE,
)
"""Members of enumerations for the path of every request: a global is found faster."""

_lane_of, _one_by_one = DeploymentConstraints.of, chain.from_iterable
"""The same of methods of classes."""

HEAD_ROOM_BYTES = CONTROL_PAYLOAD_BYTES - 4096
"""What path and header fields may take in an OPEN frame; the rest is for its other members."""

FIELD_BYTES = 8
"""Quotes, brackets and commas around one header field in JSON."""


BYTES_A_TOKEN = 8
"""No prompt has fewer tokens than one in so many bytes, but for long runs of blanks."""

FILL_SHARE = 0.9
"""What is expected to need more of the largest deployment's room is taken to need so much: estimates err."""

_ONE_CONTEXT = frozenset({"chat", "messages"})
"""Routes whose prompt is one text; others may have many in one request, each with the context to itself."""

_NOT_TEXT = (b"base64", b'"image', b'"input_audio', b'"file', b'"document', b'"video')
"""In a body that holds one of these, bytes say little of tokens."""


class Admission:
    """Lets requests into the waiting room, or says at once why not."""

    def __init__(self, index: ModelIndex, room: WaitingRoom, reconnect_grace_s: float) -> None:
        """Requests are let in for ``reconnect_grace_s`` after a model's last deployment went away: an agent
        whose tunnel broke redials at once. Time in which this process stood still is not counted."""
        self._index = index
        self._room = room
        self._grace_s = reconnect_grace_s
        self.refusals: Mapping[Availability, Callable[[Request], RequestError]] = {
            Availability.OTHER_ROUTES: self._not_for_this,
            Availability.ELSEWHERE: _not_there,
            Availability.GONE: no_deployment,
            Availability.UNKNOWN: no_deployment,
        }
        """What to say to those who waited for what is not served."""
        self.stood_still: Callable[[float, float], float] = lambda since, now: 0.0
        """For how many seconds this process did not run between two times."""
        self.yielding: Callable[[str, int], int] = lambda model, slots: 0
        """How many of so many slots of a model others would give back for realtime requests."""
        self.engine_paths = EnginePaths()
        """Who may manage engines by their own paths."""
        self.held_s: Callable[[str], float] = lambda model: 0.0
        """How long requests wait for a model of which no replica is kept while nobody asks for it."""
        self.loads: Placer | None = None
        """None: nothing is loaded on demand."""
        self.constrained: Callable[[Residency | None], Residency | None] | None = None
        """Says where a request may run that may run there, if regions cost infinitely; None: regions are not
        set."""

    def admit(self, request: Request, now: float) -> Ticket:
        """A place in the queue of the request's model.

        Raises HeadersTooLarge, ModelNotFound, NoDeployment (also when the model is served, but only where the
        request may not run, and when it cannot be loaded), RouteNotSupported when the model is served but not
        for this route, Forbidden when it manages its engine and its key may not, ContextTooLong,
        DeadlineExceeded when it is too late already, and QueueFull when the queue is at a bound or the wait
        predicted is longer than the request may wait.
        """
        _check_head(request)
        model, room = request.model, self._room
        if self.constrained is not None:
            request.where = self.constrained(request.where)
        lane = _lane_of(request)
        ahead = room.depth(model) if room.requests else 0
        at_once = room.would_take(request) and self._index.has_free(model, lane, ahead + 1)
        availability = _SERVED if at_once else self._availability(request, now)
        if request.deadline_s is not None and request.deadline_s <= now:
            raise DeadlineExceeded("The request's deadline had passed before it could be given to an engine.")
        limit = self._index.context_limit(model)
        if limit is not None and request.input_tokens + request.output_tokens >= FILL_SHARE * limit:
            self._check_context(request, limit)
        if request.route == ANY_ROUTE:
            self._check_managing(request)
        if at_once:
            return room.enter(request, None, now, lane=lane)
        capacity = self._index.capacity(
            model, request.need, ahead + 1, request.where, request.version, request.agent
        )
        if request.tier is _REALTIME and not capacity.free:
            capacity = replace(capacity, yielding=self.yielding(model, capacity.slots))
        if capacity.free or self.loads is None or not self.awaits_load(request):
            held_s = self.held_s(model) if availability is _GONE else 0.0
            return room.enter(request, capacity, now, held_s, lane)
        return self._enter_for_load(request, capacity, self.loads, now)

    def _availability(self, request: Request, now: float) -> Availability:
        """Whether the request is served, or may be if it waits. Raises as :meth:`admit` does if neither."""
        model = request.model
        availability = self._index.availability(model, request.need, request.where, request.agent)
        if availability is _UNKNOWN:
            raise ModelNotFound(
                f"The model {model!r} does not exist here; GET /v1/models lists those that do.", param="model"
            )
        if availability is not _SERVED and self._wait_is_over(availability, model, now):
            raise self.refusals[availability](request)
        return availability

    def _not_for_this(self, request: Request) -> RouteNotSupported:
        """The model is served, but by no engine that has the request's path."""
        if request.upgrade:
            asked = "no agent that serves it opens WebSockets to its engine, as earlier releases do not"
        elif request.route == ANY_ROUTE:
            asked = "no engine that serves it opens its own paths (/engines/…)"
        else:
            asked = f"no engine that serves it has {request.method} {request.path.partition('?')[0]}"
        routes = sorted(self._index.routes(request.model) - {ANY_ROUTE})
        offers = f"; it is offered for: {', '.join(routes)}" if routes else ""
        return RouteNotSupported(
            f"The model {request.model!r} is served, but {asked}{offers}.", param="model"
        )

    def path_missing(self, request: Request) -> RequestError:
        """The error for a request whose path its engine lacks, if no other deployment gets the request."""
        if self._index.availability(request.model, request.need) is Availability.OTHER_ROUTES:
            return self._not_for_this(request)
        return NoDeployment(
            "The engine that was asked has nothing at this path, and others that serve the model may; send "
            "the request again.",
            param="model",
        )

    def too_late(self, request: Request, now: float) -> RequestError:
        """What to say to a request that waited as long as it may."""
        if request.deadline_s is not None and now >= request.deadline_s:
            return DeadlineExceeded("The request's deadline passed while it waited for a slot.")
        availability = self._index.availability(request.model, request.need, request.where, request.agent)
        if availability is not Availability.SERVED:
            return self.refusals[availability](request)
        if self.misses_version(request.model, DeploymentConstraints.of(request)):
            return not_in_version(request)
        loading = self.awaits_load(request)
        what = "could not be loaded in time" if loading else "had no slot free in time"
        return QueueTimeout(
            f"The model {request.model!r} {what}; try again later.",
            retry_after_s=self.retry_after_s(request, now),
        )

    def retry_after_s(self, request: Request, now: float) -> float:
        """In how many seconds a client whose request is refused now should try again."""
        return self._room.retry_after_s(request, self._expected_capacity(request, now), now)

    def extended_expiry(self, ticket: Ticket, now: float) -> float | None:
        """Until when a request may wait on that waited as long as it was to, for a model that is being
        loaded; None: no longer."""
        if self.loads is None or not self.awaits_load(ticket.request):
            return None
        return self.loads.hold_longer(ticket.request, ticket.entered_s, now)

    def awaits_load(self, request: Request) -> bool:
        """Whether it has to wait until its model is loaded."""
        return self.loads is not None and self._index.awaits_load(
            request.model, DeploymentConstraints.of(request)
        )

    def _expected_capacity(self, request: Request, now: float) -> Capacity:
        """The capacity for ``request``: what is served now or, if nothing is, what loading its model will
        give."""
        capacity = self._capacity(request)
        if capacity.slots or self.loads is None or not self.awaits_load(request):
            return capacity
        return _with(capacity, self.loads.expected_wait(request, now))

    def expiry(self, request: Request, now: float) -> float:
        """Until when ``request``, which comes back to the queue now, may wait."""
        if self.loads is None or not self.awaits_load(request):
            return self._room.expiry(request, now)
        return self._room.expiry(request, now, self.loads.expected_wait(request, now).hold_s)

    def _capacity(self, request: Request) -> Capacity:
        enough = self._room.depth(request.model) + 1
        return self._index.capacity(
            request.model, request.need, enough, request.where, request.version, request.agent
        )

    def _enter_for_load(self, request: Request, capacity: Capacity, loads: Placer, now: float) -> Ticket:
        hold = loads.hold(request, now)
        try:
            return self._room.enter(request, _with(capacity, hold), now, hold.hold_s)
        except QueueFull:
            loads.note_sent_away(request, now)
            raise

    def _check_context(self, request: Request, limit: int) -> None:
        """Raises ContextTooLong where no deployment can hold the prompt in ``limit`` tokens, whatever its
        tokenizer. What is only estimated to be too much is taken for what fits when nothing else is there:
        the engine will say."""
        least_tokens = min(request.prompt_bytes // BYTES_A_TOKEN, request.input_tokens // 2)
        if least_tokens > limit and request.route in _ONE_CONTEXT and _is_text(request.body.prefix):
            raise ContextTooLong(
                f"The model {request.model!r} takes {limit} tokens here, and the messages have "
                f"{request.prompt_bytes} bytes, {least_tokens} tokens at least; shorten them.",
                param="messages",
            )
        most_tokens = int(FILL_SHARE * limit)
        request.input_tokens = min(request.input_tokens, most_tokens)
        request.output_tokens = most_tokens - request.input_tokens

    def _check_managing(self, request: Request) -> None:
        """For an engine's own paths: raises Forbidden where it manages the engine and its key may not."""
        self.engine_paths.check(request, self._index.kinds(request.model))
        request.barred = self.engine_paths.bars

    def misses_version(self, model: str, fit: DeploymentConstraints) -> bool:
        """Whether nothing serves the version of ``model`` that such requests are for, or could be loaded for
        them."""
        if fit.version is None:
            return False
        if self._index.capacity(model, fit.route, 0, fit.where, fit.version, fit.agent).slots:
            return False
        return not self._index.someone_else(model, structs.replace(fit, avoid=frozenset()), patiently=True)

    def _wait_is_over(self, availability: Availability, model: str, now: float) -> bool:
        if availability is Availability.GONE:
            return self.gone_for_good(model, now)
        return now >= self.wait_ends_there_at(model, now)

    def gone_for_good(self, model: str, now: float) -> bool:
        """Whether nothing serves ``model``, and the time to wait for it to come back is over."""
        gone_at_s = self.wait_ends_at(model, now)
        return gone_at_s is not None and now >= gone_at_s

    def wait_ends_there_at(self, model: str, now: float) -> float:
        """The same for those who may not run where it is served, or want another version: what went last may
        have been for them."""
        record = self._index.models.get(model)
        return 0.0 if record is None else self._over_at(record.left_s, now)

    def wait_ends_at(self, model: str, now: float) -> float | None:
        """When requests that wait for ``model`` are refused because nothing serves it; None while it is
        served."""
        record = self._index.models.get(model)
        if record is None:
            return 0.0
        if record.lost_s is None:
            return None
        return max(self._over_at(record.lost_s, now), now + self.held_s(model))

    def _over_at(self, gone_s: float, now: float) -> float:
        return gone_s + self._grace_s + self.stood_still(gone_s, now)


def _with(capacity: Capacity, hold: LoadWait) -> Capacity:
    return replace(capacity, coming=hold.coming, ready_s=hold.ready_s)


def _is_text(body: bytes) -> bool:
    return not any(sign in body for sign in _NOT_TEXT)


def no_deployment(request: Request) -> NoDeployment:
    """Nothing serves the model."""
    return NoDeployment(
        f"The model {request.model!r} is known, but no agent serves it now; try again later.",
        param="model",
        retry_after_s=NO_DEPLOYMENT_RETRY_S,
    )


def _not_there(request: Request) -> NoDeployment:
    """The model is served, but not where the request may run, or not by the agent it is for."""
    if request.agent is not None and request.session_pin is not None:
        return no_deployment(request)
    if request.agent is not None:
        # Nothing here tells agents that are away from those that the key may not use, or that never were.
        return NoDeployment(
            f"The agent {request.agent!r} does not serve the model {request.model!r} to this key now; leave "
            f"'@{request.agent}' out to have any agent answer, or try again later.",
            param="model",
            code="agent_unavailable",
            retry_after_s=NO_DEPLOYMENT_RETRY_S,
        )
    return NoDeployment(
        f"The model {request.model!r} is served, but by no agent with {request.where} now, and this request "
        "may run nowhere else; try again later.",
        code="residency_unavailable",
        retry_after_s=NO_DEPLOYMENT_RETRY_S,
    )


def not_in_version(request: Request) -> NoDeployment:
    """The model is served, but not in the version that the request is for."""
    return NoDeployment(
        f"The model {request.model!r} is served, but by no agent in its version {request.version!r} now; try "
        "again later.",
        param="model",
        retry_after_s=NO_DEPLOYMENT_RETRY_S,
    )


def _check_head(request: Request) -> None:
    """Raises HeadersTooLarge when the request's head might not go into one frame (PROTOCOL §4.1).

    In JSON a character of it takes two bytes at most: what must be quoted, and what is not ASCII.
    """
    headers, trace = request.headers, request.trace
    size_bytes = len(request.path) + len(headers) * FIELD_BYTES + sum(map(len, _one_by_one(headers)))
    if trace is not None:
        size_bytes += len(trace)
    if 2 * size_bytes <= HEAD_ROOM_BYTES:
        return
    pieces = (request.path, trace or "", *(piece for field in headers for piece in field))
    quoted_bytes = sum(len(orjson.dumps(piece)) for piece in pieces) + 4 * len(headers)
    if quoted_bytes > HEAD_ROOM_BYTES:
        raise HeadersTooLarge("The request's path and header fields are more than a tunnel carries at once.")
