"""The latest lines, within bounds, from any thread."""

import io
import json
import threading
import tracemalloc

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.log_ring import CHUNK_BYTES, LogPosition, LogRing, log_kept
from shared.process.logs import batched_log, configure_logs
from tests.support.logged_facts import LoggedFacts


def test_lines_are_read_behind_a_position_and_none_twice() -> None:
    ring = LogRing(10_000)
    start = ring.end
    ring.add(b"1\n2\n", 2)
    first = ring.read(start, 1)
    assert (first.lines, first.dropped) == ([b"1"], 0)
    ring.add(b"3\n", 1)
    second = ring.read(first.position, 10)
    assert second.lines == [b"2", b"3"]
    assert second.position == ring.end
    assert ring.read(second.position, 10).lines == []


def test_the_oldest_go_first_and_who_lacks_them_is_told_how_many() -> None:
    ring = LogRing(CHUNK_BYTES + 3 * 10)
    start = ring.end
    ring.add(b"".join(b"%9d\n" % number for number in range(5)), 5)
    read = ring.read(start, 10)
    assert ([int(line) for line in read.lines], read.dropped) == ([2, 3, 4], 2)
    ring.add(b"x" * 1000 + b"\n", 1)
    assert ring.read(start, 10) == (LogPosition(start.epoch, 6), [], 6)


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), max_size=12), st.integers(1, 1000))
def test_what_is_kept_are_the_latest_lines_within_the_limit(added: list[list[int]], limit_bytes: int) -> None:
    ring, start, lines = LogRing(limit_bytes), LogRing(1).end, list[bytes]()
    for sizes in added:
        together = [b"%d" % (len(lines) + number) + b"." * size for number, size in enumerate(sizes)]
        ring.add(b"".join(line + b"\n" for line in together), len(together))
        lines += together
    kept = ring.read(None, 1000)
    assert kept.position == ring.end
    assert (ring.end.number, kept.dropped) == (len(lines), len(lines) - len(kept.lines))
    assert kept.lines == lines[kept.dropped :]
    assert sum(len(line) + 1 for line in kept.lines) <= limit_bytes
    newest = len(lines[-1]) + 1 + CHUNK_BYTES if lines else 0
    assert bool(kept.lines) == (0 < newest <= limit_bytes)
    for number in range(kept.dropped, len(lines)):
        behind = ring.read(LogPosition(ring.end.epoch, number), 2)
        assert behind.lines == lines[number : number + 2]
        assert (behind.position.number, behind.dropped) == (number + len(behind.lines), 0)
    assert ring.read(start, 1000) == kept


def test_of_another_process_all_lines_are_new() -> None:
    ring = LogRing(10_000)
    ring.add(b"1\n2\n", 2)
    for position in (None, LogPosition("other", 1)):
        assert ring.read(position, 10).lines == [b"1", b"2"]
    assert ring.read(LogPosition(ring.end.epoch, 99), 10).lines == []


@pytest.mark.parametrize("text", ["", "a", "a.", ".1", "a.x", "a.-1", "a.1٣", f"a.{'1' * 50}", "a b.1"])
def test_what_is_no_position_is_an_error(text: str) -> None:
    assert LogPosition.read(str(LogPosition("a1", 12))) == ("a1", 12)
    with pytest.raises(ValueError, match="no position"):
        LogPosition.read(text)


def test_who_watches_is_woken_until_it_watches_no_more() -> None:
    ring, woken = LogRing(10_000), list[int]()

    def wake() -> None:
        woken.append(1)

    ring.watch(wake)
    ring.add(b"1\n2\n", 2)
    ring.unwatch(wake)
    ring.add(b"3\n", 1)
    assert woken == [1]


def test_lines_of_many_threads_are_all_there() -> None:
    ring = LogRing(10_000_000)

    def add() -> None:
        for number in range(1000):
            ring.add(b"%d\n" % number, 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(ring.read(None, 10_000).lines) == ring.end.number == 4000


@pytest.mark.parametrize("style", ["json", "text"])
def test_every_line_of_the_log_is_kept_as_json_whatever_its_form(style: str) -> None:
    configure_logs("info", style, stream=io.TextIOWrapper(io.BytesIO()), process="p1")
    with log_kept(100_000) as ring:
        structlog.get_logger("gateway.fleet").warning("odd", key="sk-tl-" + "a" * 40)
        structlog.get_logger("gateway.fleet").debug("unwanted")
        batch = batched_log("gateway.request", lambda seconds, flush: None)
        batch.add("info", "request", LoggedFacts(id="r1"))
        getattr(batch, "flush", lambda: None)()
    structlog.get_logger("gateway").info("afterwards")
    first, second = [json.loads(line) for line in ring.read(None, 10).lines]
    assert (first["event"], first["level"], first["logger"]) == ("odd", "warning", "gateway.fleet")
    assert (first["key"], first["process"]) == ("sk-tl-***", "p1")
    assert (second["id"], second["logger"]) == ("r1", "gateway.request")
    structlog.reset_defaults()


@pytest.mark.parametrize("batched", [False, True])
def test_kept_lines_take_no_more_memory_than_is_counted(batched: bool) -> None:
    limit_bytes = 100_000
    configure_logs("info", "json", stream=io.TextIOWrapper(io.BytesIO()))
    batch, logger = batched_log("x", lambda seconds, flush: None), structlog.get_logger("x")
    with log_kept(limit_bytes) as ring:
        tracemalloc.start()
        try:
            for number in range(1000):
                if batched:
                    batch.add("info", "request", LoggedFacts(id=number, text="x" * 300))
                    getattr(batch, "flush", lambda: None)()
                else:
                    logger.info("request", id=number, text="x" * 300)
            taken_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(ring.read(None, 1000).lines) < 1000
    assert limit_bytes / 2 < taken_bytes < 2 * limit_bytes
    structlog.reset_defaults()
