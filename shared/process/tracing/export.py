"""Spans on their way out: nobody waits for a collector, and what it does not take is counted."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence

import structlog

from shared.process.tracing.settings import OtelTable
from shared.process.tracing.spans import SpanData, SpanSender

_log = structlog.get_logger("tracing")

BATCH_SPANS = 512
"""Of one export."""

EVERY_S = 1.0
"""How long a span waits for others at most, unless there is a batch before."""

Traced = Callable[[], Sequence[SpanData]]
"""Makes the spans of a request; called in the thread that sends them."""


class SpanExporter:
    """Takes what requests left, on the event loop, and sends it as spans in a thread of its own."""

    def __init__(self, make_sender: Callable[[], SpanSender], most_spans: int) -> None:
        """``make_sender`` is called in the thread; at most ``most_spans`` wait."""
        self._make_sender = make_sender
        self._most_spans = most_spans
        self._queue: deque[tuple[int, Traced]] = deque()
        self._waiting_spans = 0
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._stopped = threading.Event()
        self._sender: SpanSender | None = None
        self._thread = threading.Thread(target=self._run, name="trace export", daemon=True)
        self.exported = 0
        """Spans that the collector took."""
        self.dropped: Counter[str] = Counter(queue_full=0, not_taken=0)
        """Spans that it did not get, because too many waited or because it took none."""
        self._failing = False

    def start(self) -> None:
        self._thread.start()

    def put(self, spans: int, traced: Traced) -> None:
        """What a request left, of about so many spans. Never waits."""
        with self._lock:
            full = self._waiting_spans + spans > self._most_spans
            if full:
                self.dropped["queue_full"] += spans
            else:
                self._waiting_spans += spans
                self._queue.append((spans, traced))
        if not full and self._waiting_spans >= BATCH_SPANS:
            self._due.set()

    def stop(self, timeout_s: float) -> None:
        """Send what waits, for so long at most; what is left is dropped. Blocks."""
        self._stopped.set()
        self._due.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self._sender is not None:
            self._sender.close()

    def _run(self) -> None:
        try:
            sender = self._sender = self._make_sender()
        except Exception:
            _log.exception("traces_not_exported")
            return
        while not self._stopped.is_set():
            self._due.wait(EVERY_S)
            self._due.clear()
            self._send_all(sender)
        self._send_all(sender)
        sender.close()

    def _send_all(self, sender: SpanSender) -> None:
        while batch := self._take():
            spans = [span for traced in batch for span in traced()]
            try:
                taken = sender.send(spans)
            except Exception as error:
                taken = False
                _log.debug("trace_export_failed", error=repr(error))
            with self._lock:
                if taken:
                    self.exported += len(spans)
                else:
                    self.dropped["not_taken"] += len(spans)
            self._say(taken=taken)

    def _take(self) -> list[Traced]:
        batch: list[Traced] = []
        size = 0
        with self._lock:
            while self._queue and size < BATCH_SPANS:
                spans, traced = self._queue.popleft()
                batch.append(traced)
                size += spans
            self._waiting_spans -= size
        return batch

    def _say(self, *, taken: bool) -> None:
        """Once when it begins to fail, and once when it is over."""
        if taken == self._failing:
            self._failing = not taken
            if taken:
                _log.info("traces_exported_again", dropped=self.dropped.total())
            else:
                _log.warning("traces_not_taken", dropped=self.dropped.total())


def span_exporter(table: OtelTable, service: str, process: str | None = None) -> SpanExporter | None:
    """As the settings say; None: nothing is traced. ``service`` names the program, ``process`` this one of
    it. OpenTelemetry is imported in the exporter's own thread, and only where there is one."""
    url = table.traces_url
    if url is None:
        return None

    def make_sender() -> SpanSender:
        from shared.process.tracing.otlp import OtlpSender

        headers = {name: value.get_secret_value() for name, value in table.headers.items()}
        return OtlpSender(url, service, process, headers, table.timeout_s)

    return SpanExporter(make_sender, table.queue_spans)
