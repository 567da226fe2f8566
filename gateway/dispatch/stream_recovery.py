"""Decides whether and how a lost answer is continued by another engine.

For this it has the record of the answer so far, the request, and the number of attempts that are left.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto

from msgspec.structs import replace

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.recovery import (
    AnswerProgress,
    AnswerRecord,
    ContinuationReading,
    NotContinuable,
    Splicer,
)
from gateway.dispatch.request_heads import is_event_stream
from gateway.dispatch.sliced_parsing import ParseJob
from gateway.domain.json_members import without_usage
from gateway.domain.request import Request, RequestBody
from gateway.fleet.deployment import Deployment
from gateway.scheduling.health.failover import ENGINES_FAULT, AttemptCount, Trouble
from shared.protocol.limits import MIB
from shared.protocol.messages import ResponseHead, Trailers, UsageMode
from shared.protocol.routes import CONTINUED_ROUTES

REQUEST_BYTES = MIB
"""Longest request that is kept until its answer is complete."""

MOST_FAULTS = 12
"""How many engines may fail during one answer, even if each wrote some of it: otherwise one harmful request
could crash engine after engine."""


class RecoveryStep(Enum):
    """What to do with an answer whose engine is lost."""

    CLOSE = auto()
    """Only the end of the stream is missing: send it."""
    WAIT = auto()
    """Wait until another deployment can continue the answer."""


class StreamRecovery:
    """The recovery of one answer, over one engine or several. Another engine must serve the same ``version``;
    ``record`` is None for answers that cannot go on elsewhere."""

    def __init__(
        self, context: DispatchContext, request: Request, version: str, record: AnswerRecord | None
    ) -> None:
        self.record = record
        self._context = context
        self._request = request
        self._version = version
        body = request.body
        whole = record is not None and body.rest is None and body.held_bytes <= REQUEST_BYTES
        self._question: Sequence[bytes] = body.pieces if whole else ()
        self._reading: ContinuationReading | None = None
        """Made when it is needed."""
        self._progress: AnswerProgress | None = None
        self._task: ParseJob | None = None
        """In which it is being read."""
        self._splicer: Splicer | None = None
        self._tries: AttemptCount | None = None
        """Failed attempts since the answer last grew beyond ``_size_bytes``; made when an engine is lost."""
        self._size_bytes = 0
        self._faults = 0
        """How many engines failed during this answer."""

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

    # --- How far it came ---

    def is_read(self, then: Callable[[], None]) -> bool:
        """Whether the record has been read at once. If not, ``then`` is called when it has been, unless
        :meth:`stop_reading` is called before."""
        if self.record is not None:
            reading = self._read(self.record)
            self._task = self._context.sliced_parser.read(reading, lambda: self._was_read(then))
        return self._task is None

    def _was_read(self, then: Callable[[], None]) -> None:
        self._task = None
        then()

    @property
    def being_read(self) -> bool:
        """It is read over several turns of the event loop."""
        return self._task is not None

    def stop_reading(self) -> None:
        """Stop reading the record: its result is not needed any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    @property
    def nearly_read(self) -> bool:
        """What is left to read is so little that :meth:`read` need not wait."""
        return self.record is None or self._read(self.record).nearly_done

    def read(self) -> AnswerProgress:
        """How far it came; what is left to read is read at once. Raises
        :class:`~gateway.dispatch.recovery.NotContinuable`."""
        if self.record is None:
            raise NotContinuable("only streamed text can" if self._request.streaming else "")
        self._progress = self._read(self.record).progress()
        return self._progress

    def _read(self, record: AnswerRecord) -> ContinuationReading:
        if self._reading is None:
            wanted = {UsageMode.KEEP: True, UsageMode.STRIP: False}.get(self._request.usage)
            self._reading = ContinuationReading(
                self._request.route, b"".join(self._question), record, usage_wanted=wanted
            )
        return self._reading

    def reason_not_recoverable(self) -> str | None:
        """Why no other engine can continue the answer, for the client to read. None: one can. Empty: there is
        nothing to explain."""
        try:
            self.read()
        except NotContinuable as error:
            return str(error)
        return None

    @property
    def closing(self) -> bytes | None:
        """With these bytes the answer is whole, as was found by :meth:`read`; none, where its own end went
        out, be it that not all of it was kept. None: more than that is missing, as far as is known."""
        if self.record is not None and self.record.complete:
            return b""
        return None if self._progress is None else self._progress.closing

    # --- What follows when an engine is lost ---

    def after_loss(self, lost: Attempt | None, trouble: Trouble | None) -> RecoveryStep | str:
        """What to do now that the engine is lost because of ``trouble``. A string instead says why the answer
        cannot continue; it is empty if there is nothing to explain."""
        why_not = self.reason_not_recoverable()
        if self.closing is not None:  # no engine is needed
            return RecoveryStep.CLOSE
        if why_not is not None:
            return why_not
        self.require_continuation()
        elsewhere = self._context.someone_else(self._request, patiently=True)
        if not elsewhere and lost is not None and self._request.route not in lost.deployment.continues:
            return "no engine is there that can"
        if trouble is None:
            return "trying again would do no better"
        return self._close_or_wait(trouble) or "too many engines failed on it"

    def after_failed_continuation(self, trouble: Trouble | None) -> RecoveryStep | str:
        """Like :meth:`after_loss`, for an engine that was asked to continue the answer and failed to."""
        why_not = self.reason_not_recoverable()
        return (self._close_or_wait(trouble) or "") if why_not is None else why_not

    def while_attempt_runs(self, trouble: Trouble) -> RecoveryStep | None:
        """What to do while the attempt is silent but not lost; None: keep waiting for it."""
        return self._close_or_wait(trouble) if self._can_recover_elsewhere() else None

    def may_pause(self, attempt: Attempt) -> bool:
        """Whether the answer may be interrupted and continued later, at its own deployment or another one,
        and is not complete."""
        if self.reason_not_recoverable() is not None or self.closing is not None:
            return False
        return self._request.route in attempt.deployment.continues or self._can_recover_elsewhere()

    def may_recover_elsewhere(self) -> bool:
        """Whether another engine might continue the answer. True only while the record has long to be read,
        so that this is not known for certain."""
        return not self.nearly_read and self._has_other_deployment()

    def require_continuation(self) -> None:
        """From now on schedule the request only to engines that can continue its answer."""
        self._request.version, self._request.continuing = self._version, True

    def _can_recover_elsewhere(self) -> bool:
        """Whether there is another deployment that can continue the answer, and the answer can be
        continued."""
        if self._has_other_deployment() and self.reason_not_recoverable() is None:
            self.require_continuation()
            return True
        return False

    def _has_other_deployment(self) -> bool:
        request = self._request
        before = request.version, request.continuing
        self.require_continuation()
        try:
            return self._context.someone_else(request)
        finally:
            request.version, request.continuing = before

    def _close_or_wait(self, trouble: Trouble | None) -> RecoveryStep | None:
        if self.closing is not None:
            return RecoveryStep.CLOSE
        return RecoveryStep.WAIT if self._may_try(trouble) else None

    def _may_try(self, trouble: Trouble | None) -> bool:
        """Whether one more try is allowed, after ``trouble`` (None: the engine is not known to be at fault);
        counts it. No budget is asked: an answer that has begun is not dropped to save work."""
        self._faults += trouble in ENGINES_FAULT
        if self._tries is None:
            self._tries = AttemptCount(self._context.settings.max_attempts)
        if self.record is not None and self.record.size_bytes > self._size_bytes:
            self._size_bytes = self.record.size_bytes
            self._tries.reset()
            self._request.forget_failures(but_last=trouble is None or trouble in ENGINES_FAULT)
        return self._tries.count(trouble) and self._faults < MOST_FAULTS

    # --- Going on ---

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
        self.forget_unfinished()
        self._splicer = self._progress.splicer()
        return self._splicer

    def forget_unfinished(self) -> None:
        """The stream broke: of its last event the client has nothing."""
        assert self.record is not None
        self.record.break_off()

    # --- How it ends ---

    @property
    def missing(self) -> bytes | None:
        """What an answer lacks whose stream ended in order: nothing where it ended as its route's streams do,
        else the events of such an end; None when it is not whole. See
        :meth:`gateway.dispatch.recovery.AnswerRecord.closing`."""
        return b"" if self.record is None or self.record.ends_well else self.record.closing()

    @property
    def commentable(self) -> bool:
        """What the client has are whole events."""
        return self.record is not None and not self.record.overflowed

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
        if self._task is not None:
            self.stop_reading()
        if self.record is not None:
            self.record.release()
        self._question = ()
        self._reading = self._progress = None
