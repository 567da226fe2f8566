"""What one answer needs to go on at another engine: what came of it, and the request that it answers."""

from dataclasses import replace

import structlog

from gateway.dispatch.heads import is_event_stream
from gateway.dispatch.recovery import (
    AnswerRecord,
    ContinuationReading,
    NotContinuable,
    Progress,
    RecordBudget,
    Splicer,
)
from gateway.domain.json_members import without_usage
from gateway.domain.request import Request, RequestBody
from gateway.fleet.deployment import Deployment
from shared.protocol import limits
from shared.protocol.messages import ResponseHead, Trailers, UsageMode
from shared.protocol.routes import CONTINUED_ROUTES

REQUEST_BYTES = limits.MIB
"""Longest request that is kept until its answer is complete."""

NOT_READ = "how far it came could not be read"

_log = structlog.get_logger(__name__)


class StreamRecovery:
    """A streamed answer over one engine or several."""

    def __init__(self, request: Request, budget: RecordBudget, most_bytes: int) -> None:
        self.record = AnswerRecord(request.route, budget, most_bytes)
        self._request = request
        body = request.body
        whole = body.rest is None and body.held_bytes <= REQUEST_BYTES
        self._question = body.prefix if whole else b""
        self._reading: ContinuationReading | None = None
        """Made when it is needed."""
        self._failed = False
        """Reading raised what it should not: nothing more is read."""
        self._progress: Progress | None = None
        self._splicer: Splicer | None = None

    @staticmethod
    def recordable(request: Request, head: ResponseHead) -> bool:
        """Whether the answer that begins with ``head`` is one that may go on elsewhere."""
        return (
            request.route in CONTINUED_ROUTES
            and request.streaming
            and not request.shadow
            and head.status == 200
            and is_event_stream(head.headers)
        )

    @property
    def left_bytes(self) -> int:
        """Of request and answer, still to be read."""
        if self._reading is None:
            return len(self._question) + self.record.size_bytes
        return self._reading.left_bytes

    def step(self) -> int:
        """Read on in both; see :meth:`gateway.dispatch.recovery.ContinuationReading.step`. Raises nothing: an
        answer that cannot be read cannot go on elsewhere, and :meth:`read` says so."""
        if self._failed:
            return 0
        try:
            return self._read().step()
        except Exception:
            _log.exception("reading_failed")
            self._failed = True
            return 0

    @property
    def nearly_read(self) -> bool:
        """What is left to read is so little that :meth:`read` need not wait."""
        return self._failed or self._read().nearly_done

    def read(self) -> Progress:
        """How far it came; what is left to read is read at once. Raises
        :class:`~gateway.dispatch.recovery.NotContinuable`."""
        while self.step():
            pass
        if self._failed:
            raise NotContinuable(NOT_READ)
        self._progress = self._read().progress()
        return self._progress

    def _read(self) -> ContinuationReading:
        if self._reading is None:
            wanted = {UsageMode.KEEP: True, UsageMode.STRIP: False}.get(self._request.usage)
            route = self._request.route
            self._reading = ContinuationReading(route, self._question, self.record, usage_wanted=wanted)
        return self._reading

    def reason_not_recoverable(self) -> str | None:
        """Why the answer so far cannot go on at another engine, fit to be told; None when it can."""
        try:
            self.read()
        except NotContinuable as error:
            return error.reason
        return None

    def ask(self, deployment: Deployment) -> RequestBody:
        """The request for the next engine, after :meth:`read`. Raises NotContinuable."""
        assert self._progress is not None
        mode = deployment.continues.get(self._request.route)
        if mode is None:
            raise NotContinuable("no other engine can go on with an answer that was begun elsewhere")
        body = self._progress.continued_request(mode)
        if deployment.takes_usage_option is False and self._request.usage is UsageMode.STRIP:
            body = without_usage(body) or body
        return RequestBody(body)

    def splicer(self) -> Splicer:
        """For the answer to what :meth:`ask` asked."""
        assert self._progress is not None
        self._splicer = self._progress.splicer()
        return self._splicer

    @property
    def closing(self) -> bytes | None:
        """After :meth:`read`: with these bytes the answer is whole."""
        return None if self._progress is None else self._progress.closing

    @property
    def whole(self) -> bool:
        """The answer may end where its stream ended."""
        return self.record.ends_well

    @property
    def missing(self) -> bytes | None:
        """What an answer lacks whose stream ended in order, with a reason why it ends, and not as its route's
        streams end; None when it is not whole. See :meth:`gateway.dispatch.recovery.AnswerRecord.closing`."""
        return self.record.closing()

    @property
    def commentable(self) -> bool:
        """What the client has are whole events."""
        return not self.record.overflowed

    @property
    def continued(self) -> bool:
        """Another engine went on with it."""
        return self._splicer is not None

    def add_up(self, trailers: Trailers) -> Trailers:
        """What the last engine reported, made to fit the whole answer."""
        if self._splicer is None or trailers.usage is None:
            return trailers
        return replace(trailers, usage=self._splicer.add_up(trailers.usage))

    def release(self) -> None:
        """The answer is done with, one way or the other."""
        self.record.release()
        self._question = b""
        self._reading = self._progress = None
