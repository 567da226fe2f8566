"""What is kept of requests that are over: the latest, and for longer those that were slow or failed.

All of it is in memory and bounded. A record holds no content and nothing by which content could be reached:
the request itself, whose body and header fields hold some, is not kept.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import SimpleNamespace
from typing import Any, Protocol

from msgspec import Struct

from gateway.dispatch.decisions.decision import Decision
from gateway.domain.request import Request
from gateway.observability.audit import RequestFacts
from gateway.scheduling.queue.tickets import Ticket
from shared.protocol.routes import ROUTES

_ROUTES = frozenset(ROUTES)
"""Of requests for models; all others tell nothing of scheduling."""

CANCELLED = 499
"""The status of a request whose client left."""

_FAILED = 400

_CLOCK_SET_S = 0.1
"""A difference of the two clocks that changed by more means that somebody set the machine's."""


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """How many are kept."""

    recent: int = 2000
    slow: int = 500
    failed: int = 500
    slow_s: float = 5.0
    """Whose answer begins later than so long after its arrival is slow."""


class KeptRequest(Struct, frozen=True, gc=False):
    """What is kept of one request."""

    facts: RequestFacts
    """``status`` is 0 while it is not over; ``at_s`` is when it was over, or now."""
    number: int
    """Counts those that are over; 0: it is not."""
    key_name: str
    bytes_in: int | None
    bytes_out: int | None
    arrived_s: float | None
    """On the gateway's clock; None where it never came as far as the queue."""
    streaming: bool
    input_tokens: int
    """As the gateway estimated."""
    output_tokens: int
    preempted: int
    decisions: Sequence[Decision]
    last_wait: tuple[float, float, int, tuple[tuple[str, float], ...]] | None
    """:attr:`gateway.domain.request.Request.last_wait`."""
    waiting: bool = False
    """It waits for a slot now."""
    arrived_at_s: float | None = None
    """In seconds since 1970, of one that is not over: the same whenever one looks."""

    @property
    def state(self) -> str:
        """``queued``, ``running``, ``answered``, ``failed`` or ``cancelled``."""
        status = self.facts.status
        if not status:
            return "queued" if self.waiting else "running"
        return "answered" if status < _FAILED else "cancelled" if status == CANCELLED else "failed"

    @property
    def began_at_s(self) -> float:
        """When it arrived, in seconds since 1970."""
        known_s = self.arrived_at_s
        return self.facts.at_s - self.facts.total_s if known_s is None else known_s

    @property
    def first_s(self) -> float:
        """How long its client waited for the first of an answer, so far or in all."""
        first_s = self.facts.first_byte_s
        return self.facts.total_s if first_s is None else first_s


_NOTHING_ASKED: Any = SimpleNamespace(
    arrived_s=None,
    streaming=False,
    input_tokens=0,
    output_tokens=0,
    preempted=0,
    decisions=None,
    last_wait=None,
)
"""What is kept of one that never got as far as a model."""


class LiveRequest(Protocol):
    """One that waits or runs; :class:`gateway.dispatch.exchange.RequestExchange`."""

    request: Request
    ticket: Ticket


class RequestRecords:
    """The records of one process. Belongs to the event loop's thread."""

    def __init__(
        self,
        settings: RecordSettings,
        live: Callable[[], Iterable[LiveRequest]],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """``live`` gives those that are not over, in order of arrival; ``clock`` gives seconds of the
        dispatcher's clock, ``wall`` seconds since 1970."""
        self.settings = settings
        self.clock = clock
        self._live = live
        self._wall = wall
        self._ahead_s = wall() - clock()
        """``wall`` of ``clock``, until somebody sets the machine's clock."""
        self._recent = deque[KeptRequest](maxlen=settings.recent)
        self._slow = deque[KeptRequest](maxlen=settings.slow)
        self._failed = deque[KeptRequest](maxlen=settings.failed)
        self.ended = self.failed = 0
        """Requests that are over, and those of them that failed, since the process began."""

    def add(
        self,
        facts: RequestFacts,
        key_name: str,
        bytes_in: int | None,
        bytes_out: int | None,
        request: Request | None,
    ) -> None:
        """A request is over. ``request`` is None for one that never got as far as a model, sizes where they
        are not known."""
        if request is None and facts.route not in _ROUTES:
            return
        asked = _NOTHING_ASKED if request is None else request
        self.ended += 1
        record = KeptRequest(
            facts,
            self.ended,
            key_name,
            bytes_in,
            bytes_out,
            asked.arrived_s,
            asked.streaming,
            asked.input_tokens,
            asked.output_tokens,
            asked.preempted,
            asked.decisions or (),
            asked.last_wait,
        )
        self._recent.append(record)
        first_s, status = facts.first_byte_s, facts.status
        if (facts.total_s if first_s is None else first_s) >= self.settings.slow_s:
            self._slow.append(record)
        if status >= _FAILED and status != CANCELLED:
            self.failed += 1
            self._failed.append(record)

    # --- For who asks ---

    def known(self) -> Iterator[KeptRequest]:
        """All there are, those that are not over first, then the latest that were over first."""
        yield from self.not_over()
        yield from self.over()

    def over(self) -> Iterator[KeptRequest]:
        """Those that are over, the latest first; more may end while this goes on."""
        recent = list(self._recent)
        oldest = recent[0].number if recent else self.ended + 1
        older = {each.number: each for each in chain(self._slow, self._failed) if each.number < oldest}
        yield from reversed(recent)
        yield from (each for _, each in sorted(older.items(), reverse=True))

    def since(self, number: int) -> list[KeptRequest]:
        """Those that were over after the one of this number and are still kept, the earliest first."""
        found: list[KeptRequest] = []
        for each in reversed(self._recent):
            if each.number <= number:
                break
            found.append(each)
        found.reverse()
        return found

    def not_over(self) -> Iterator[KeptRequest]:
        """Those that wait or run now, the latest first."""
        now = self.clock()
        ahead_s = self._wall() - now
        if abs(ahead_s - self._ahead_s) > _CLOCK_SET_S:
            self._ahead_s = ahead_s
        for exchange in reversed(list(self._live())):
            if not exchange.request.shadow:
                yield unfinished(exchange, now, self._ahead_s)

    def count_not_over(self) -> int:
        """How many wait or run now."""
        return sum(1 for _ in self._live())

    def kept(self) -> dict[str, int]:
        """How many of each kind there are."""
        return {"recent": len(self._recent), "slow": len(self._slow), "failed": len(self._failed)}

    def is_slow(self, record: KeptRequest) -> bool:
        return record.first_s >= self.settings.slow_s


def unfinished(exchange: LiveRequest, now: float, ahead_s: float) -> KeptRequest:
    """What is known of one that waits or runs; ``now`` and ``ahead_s`` together are seconds since 1970."""
    request, decisions = exchange.request, exchange.request.decisions or ()
    who, waiting = request.principal, exchange.ticket.waiting
    queue_s = sum(max(0.0, each.opened_s - each.entered_s) for each in decisions)
    queue_s += now - exchange.ticket.entered_s if waiting else 0.0
    heard = [each.first_piece_s for each in decisions if each.first_piece_s is not None]
    first_s = heard[0] - request.arrived_s if heard else None
    facts = RequestFacts(
        now + ahead_s,
        request.id,
        0,
        None,
        who.key_id,
        who.tenant,
        request.route,
        request.model,
        request.alias,
        request.target,
        None,
        request.tier,
        list(request.attempts),
        request.troubles,
        queue_s,
        first_s,
        now - request.arrived_s,
        None,
        request.gpu_s,
        None,
    )
    return KeptRequest(
        facts,
        0,
        who.key_name,
        None,
        None,
        request.arrived_s,
        request.streaming,
        request.input_tokens,
        request.output_tokens,
        request.preempted,
        decisions,
        (exchange.ticket.entered_s, now, exchange.ticket.ahead, ()) if waiting else None,
        waiting,
        request.arrived_s + ahead_s,
    )
