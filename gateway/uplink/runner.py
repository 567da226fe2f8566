"""Has the parent's requests answered by this gateway's agents, and books them (PROTOCOL §7.6)."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass

import structlog

from gateway.dispatch.decisions.records import RequestRecords
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.exchange import RequestExchange
from gateway.dispatch.response import EngineResponse
from gateway.domain.errors import RequestError, StreamBroken
from gateway.domain.quotas import Price
from gateway.domain.request import Request, RequestBody
from gateway.fleet.model_index import ModelIndex
from gateway.observability.audit import RequestFacts
from gateway.observability.metrics import Metrics
from gateway.quota import unreported_usage
from gateway.quota.usage import UsageLedger
from gateway.uplink.capacity import UplinkCapacity, UplinkSlot
from gateway.uplink.requests import PRINCIPAL, check_path, place_of, request_of
from gateway.uplink.run import UplinkRun, refusal_code
from gateway.uplink.tracing import UplinkTracing
from shared.protocol.endpoint import Stream
from shared.protocol.messages import RequestHead
from shared.protocol.other_requests import OtherSessions, ToldRequest
from shared.protocol.peers import DECLINES, PROGRESS

_log = structlog.get_logger("gateway.uplink")

OUTCOMES = ("answered", "refused", "failed", "cancelled")
_CLIENT_GONE = 499


@dataclass(frozen=True)
class UplinkBooks:
    """Where the parent's requests are booked."""

    ledger: UsageLedger
    metrics: Metrics
    audit: Callable[[RequestFacts], None] | None
    """None: requests are not audited."""
    price: Callable[[str], Price]
    gate: Callable[[], None] | None = None
    """Raises RequestError while nobody is to be served."""
    records: RequestRecords | None = None
    """Keeps decision records; None: nobody does."""
    traces: UplinkTracing | None = None
    """None: nothing is traced."""


class UplinkRunner:
    """Implements :class:`shared.link.session.StreamRunner` and :class:`gateway.uplink.run.UplinkDispatch`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        index: ModelIndex,
        capacity: UplinkCapacity,
        books: UplinkBooks,
        own_ids: Callable[[], frozenset[str]],
        labels: Mapping[str, str],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``labels`` count for agents that do not have them."""
        self._dispatcher = dispatcher
        self._index = index
        self._capacity = capacity
        self._books = books
        self._own_ids = own_ids
        self._labels = labels
        self._wall = wall
        self._runs: set[UplinkRun] = set()
        self.others = OtherSessions(time.monotonic, lambda: map(self._told, self._runs))
        """Tells the parent's processes of each other's requests (PROTOCOL §4.11)."""
        self._empty: asyncio.Event | None = None
        self.outcomes: Counter[str] = Counter()

    @property
    def running(self) -> int:
        return len(self._runs)

    def open(self, session: Hashable, stream: Stream, *, agreed: Collection[str] = ()) -> None:
        """A request has come. Refused at once when there is no slot for it, or it may not run here."""
        head, declines = stream.head, DECLINES in agreed
        try:
            check_path(head, self._own_ids())
            slot = self._capacity.enter(session, head.deployment)
        except RequestError as refusal:
            _log.info("uplink_request_refused", id=head.request_id, model=head.model, reason=str(refusal))
            self.outcomes["refused"] += 1
            stream.reset(refusal_code(refusal, declines=declines), str(refusal))
            return
        run = stream.handler = UplinkRun(
            stream, slot, self, declines=declines, tells_progress=PROGRESS in agreed
        )
        if self._books.traces is not None:
            run.trace = self._books.traces.begin(head, run.began_s)
        if self.others.wanted:
            self.others.began(self._told(run))
        self._runs.add(run)
        if head.upgrade:
            run.begin_messages()

    async def idle(self) -> None:
        """Waits until no request of the parent is left."""
        while self._runs:
            self._empty = self._empty or asyncio.Event()
            await self._empty.wait()

    def cut_off(self) -> None:
        """End what runs, because this gateway ends."""
        for run in tuple(self._runs):
            run.cut_off()

    def _told(self, run: UplinkRun) -> ToldRequest:
        if run.told is None:
            head, began_s = run.stream.head, time.monotonic() - (self.now() - run.began_s)
            run.told = self.others.told(run.slot.session, head.deployment, head.expected, began_s)
            run.told.read = run.first_byte_s is not None
        return run.told

    # --- UplinkDispatch

    def first_byte(self, run: UplinkRun) -> None:
        if run.told is not None:
            self.others.first_token(run.told)

    def now(self) -> float:
        return self._dispatcher.timers.time()

    def request(self, head: RequestHead, body: RequestBody, slot: UplinkSlot) -> Request:
        """Raises RequestError."""
        if self._books.gate is not None:
            self._books.gate()
        where = place_of(head)
        if where is not None:
            where = where.inheriting(self._labels)
        return request_of(head, body, where, slot.group.key.version, self.now())

    def submit(
        self, request: Request, slot: UplinkSlot, settle: Callable[[EngineResponse | Exception], None]
    ) -> RequestExchange:
        """Raises RequestError."""
        members = slot.group.members
        self._capacity.opened(slot)
        return self._dispatcher.submit_at_once(request, settle, lambda each: each in members)

    def device(self, deployment: str) -> str:
        """What the deployment of that key runs on, as far as that is known."""
        for record in self._index.models.values():
            if (found := record.serving.get(deployment)) is not None:
                return found.device
        return ""

    def over(self, run: UplinkRun) -> None:
        if run not in self._runs:
            return
        self._runs.discard(run)
        if run.told is not None:
            self.others.ended(run.told)
        self._capacity.leave(run.slot)
        self._book(run)
        if self._empty is not None and not self._runs:
            self._empty.set()
            self._empty = None

    # --- Booking

    def _book(self, run: UplinkRun) -> None:
        books, request, response, error = self._books, run.request, run.response, run.error
        total_s = self.now() - run.began_s
        status = _status(run)
        self.outcomes[_outcome(run)] += 1
        trailers = None if response is None else response.trailers
        usage = None if trailers is None else trailers.usage
        if response is not None and request is not None:
            if usage is None and trailers is not None:
                usage = unreported_usage(request, response.status, response.attempts)
            books.ledger.finished(request, usage)
        head = run.stream.head
        route = "" if request is None else request.route
        if request is not None:
            tenant, agent = request.principal.tenant, None if response is None else response.agent
            books.metrics.request_finished(route, request.model, status, total_s, request.tier, tenant, agent)
        code = error.code if isinstance(error, RequestError) else None if error is None else "broken"
        _log.info(
            "uplink_request",
            id=head.request_id,
            model=head.model,
            status=status,
            total_ms=round(total_s * 1000, 2),
            **({} if response is None else {"agent": response.agent}),
            **({} if run.trace is None else {"trace_id": run.trace.trace_id}),
            **({} if error is None else {"error": code, "reason": _reason(error)}),
        )
        if run.trace is not None and books.traces is not None:
            books.traces.finished(run.trace, head, (request, response), (status, code, total_s))
        if request is None:
            return
        if books.audit is not None:
            books.audit(self._facts(run, request, status, code, total_s))
        if books.records is not None:
            found = self._facts(run, request, status, code, total_s)
            books.records.add(found, PRINCIPAL.key_name, None, None, request)

    def _facts(
        self, run: UplinkRun, request: Request, status: int, code: str | None, total_s: float
    ) -> RequestFacts:
        response = run.response
        trailers = None if response is None else response.trailers
        return RequestFacts(
            self._wall(),
            request.id,
            status,
            code,
            PRINCIPAL.key_id,
            PRINCIPAL.tenant,
            request.route,
            request.model,
            None,
            "",
            None if response is None else response.version,
            request.tier,
            request.attempts,
            request.troubles,
            None if response is None else response.queue_s,
            run.first_byte_s,
            total_s,
            None if trailers is None else trailers.usage,
            request.gpu_s,
            self._books.price(request.model),
            "" if trailers is None else trailers.ran_by,
            "" if trailers is None else trailers.device,
        )


def _outcome(run: UplinkRun) -> str:
    if run.cancelled:
        return "cancelled"
    if run.error is None:
        return "answered"
    return "failed" if run.response is not None or not isinstance(run.error, RequestError) else "refused"


def _status(run: UplinkRun) -> int:
    """What the parent got, in HTTP's words."""
    if run.cancelled:
        return _CLIENT_GONE
    if run.response is not None:
        return run.response.status
    return run.error.status if isinstance(run.error, RequestError) else 500


def _reason(error: Exception) -> str:
    """Nothing of the request stands in it."""
    told = isinstance(error, StreamBroken) or (isinstance(error, RequestError) and error.status >= 500)
    return str(error) if told else type(error).__name__
