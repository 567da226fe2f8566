"""Spans leave in a thread; a collector that is away or slow holds nobody up, and what it lacks is counted."""

import threading
import time
from collections.abc import Sequence

from structlog.testing import capture_logs

from shared.process.tracing.export import BATCH_SPANS, SpanExporter
from shared.process.tracing.spans import SpanData
from tests.support.processes import until


def span(number: int) -> SpanData:
    return SpanData(f"s{number}", 1, number + 1, 0, 0, 1)


class Sender:
    """Takes what comes, once it may."""

    def __init__(self, *, answer: bool = True) -> None:
        self.answer = answer
        self.may = threading.Event()
        self.may.set()
        self.sent: list[list[SpanData]] = []
        self.closed = threading.Event()
        self.threads: set[str] = set()

    def send(self, spans: Sequence[SpanData]) -> bool:
        self.threads.add(threading.current_thread().name)
        self.may.wait(30)
        self.sent.append(list(spans))
        return self.answer

    def close(self) -> None:
        self.closed.set()
        self.may.set()


def put(exporter: SpanExporter, *numbers: int) -> None:
    for number in numbers:
        exporter.put(1, lambda number=number: [span(number)])  # type: ignore[misc]


def test_what_waits_is_sent_when_the_process_ends() -> None:
    sender = Sender()
    exporter = SpanExporter(lambda: sender, 100)
    exporter.start()
    put(exporter, 0, 1, 2)
    exporter.stop(10)
    assert [each.name for batch in sender.sent for each in batch] == ["s0", "s1", "s2"]
    assert sender.threads == {"trace export"}
    assert (exporter.exported, exporter.dropped.total(), sender.closed.is_set()) == (3, 0, True)


def test_a_full_batch_does_not_wait_for_its_time() -> None:
    sender = Sender()
    exporter = SpanExporter(lambda: sender, 10 * BATCH_SPANS)
    exporter.start()
    put(exporter, *range(BATCH_SPANS))
    until("the batch was sent", lambda: exporter.exported == BATCH_SPANS)
    exporter.stop(10)


def test_a_slow_collector_holds_nobody_up_and_what_has_no_room_is_counted() -> None:
    sender = Sender()
    sender.may.clear()
    exporter = SpanExporter(lambda: sender, 600)
    exporter.start()
    put(exporter, *range(BATCH_SPANS))
    until("the collector has the first batch", lambda: bool(sender.threads))
    begun_s = time.thread_time()
    put(exporter, *range(1000))
    assert exporter.dropped == {"queue_full": 400, "not_taken": 0}
    assert time.thread_time() - begun_s < 1
    sender.may.set()
    exporter.stop(10)
    assert exporter.exported == BATCH_SPANS + 600
    assert sum(map(len, sender.sent)) == BATCH_SPANS + 600


def test_what_a_collector_does_not_take_is_counted_and_said_once() -> None:
    sender = Sender(answer=False)
    exporter = SpanExporter(lambda: sender, 10_000)
    with capture_logs() as logs:
        exporter.start()
        put(exporter, *range(BATCH_SPANS))
        until("it was refused", lambda: exporter.dropped["not_taken"] == BATCH_SPANS)
        put(exporter, *range(BATCH_SPANS))
        until("it was refused again", lambda: exporter.dropped["not_taken"] == 2 * BATCH_SPANS)
        sender.answer = True
        put(exporter, 1)
        exporter.stop(10)
    assert [each["event"] for each in logs] == ["traces_not_taken", "traces_exported_again"]
    assert exporter.exported == 1


def test_the_end_waits_no_longer_than_it_may() -> None:
    sender = Sender()
    sender.may.clear()
    exporter = SpanExporter(lambda: sender, 100)
    exporter.start()
    put(exporter, 1)
    exporter.stop(0.05)
    assert sender.closed.is_set(), "what waits for the collector is told to stop"


def test_a_sender_that_cannot_be_made_is_no_error_of_the_process() -> None:
    def fails() -> Sender:
        raise RuntimeError("no library")

    exporter = SpanExporter(fails, 100)
    with capture_logs() as logs:
        exporter.start()
        exporter.stop(10)
    assert [each["event"] for each in logs] == ["traces_not_exported"]
