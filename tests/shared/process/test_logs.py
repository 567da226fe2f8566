"""A log that cannot be written must not stop what is logged."""

import contextlib
import io
import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from shared.process.logs import BATCH_S, LineBatch, batched_log, configure_logs, keep_lines
from shared.process.utc_text import to_microseconds
from tests.support.logged_facts import LoggedFacts


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers = list(root.handlers)
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers


class Disk(io.StringIO):
    """Full or not."""

    full = False

    def flush(self) -> None:
        if self.full:
            self.truncate(self.seek(self.whole))
            raise OSError(28, "No space left on device")
        self.whole = self.tell()

    whole = 0


def test_lines_that_do_not_fit_are_counted_and_the_rest_is_written() -> None:
    disk = Disk()
    configure_logs("info", "json", stream=disk)
    log = structlog.get_logger("agent")
    log.info("before")
    disk.full = True
    for _ in range(3):
        log.info("lost")
    disk.full = False
    log.info("after")
    events = [json.loads(line) for line in disk.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["before", "lines of the log were lost", "after"]
    assert events[1]["lines"] == 3


class FullDisk(io.BytesIO):
    """Full or not, below a stream of text."""

    full = False

    def write(self, data: Any) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_lines_written_as_bytes_are_counted_as_well() -> None:
    disk = FullDisk()
    stream = io.TextIOWrapper(disk)
    configure_logs("info", "json", stream=stream)
    log = structlog.get_logger("gateway")
    disk.full = True
    log.info("lost")
    log.info("lost", text="größe")
    disk.full = False
    log.info("after")
    note, after = [json.loads(line) for line in disk.getvalue().splitlines()]
    assert (note["event"], note["lines"]) == ("lines of the log were lost", 2)
    assert after["event"] == "after"
    stream.close()


class Pipe(io.RawIOBase):
    """Takes at most so many bytes until it is emptied, and a few at a time, without waiting."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self.written = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int | None:
        size_bytes = min(len(data), self.room_bytes, 100)
        self.room_bytes -= size_bytes
        self.written += bytes(data[:size_bytes])
        return size_bytes or None


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("room_bytes", [0, 1, 30, 1000, 1001, 2500])
def test_what_fits_of_many_lines_is_written_and_no_line_is_glued_to_a_torn_one(
    room_bytes: int, buffered: bool
) -> None:
    pipe = Pipe(room_bytes)
    binary: Any = io.BufferedWriter(pipe, 64 * 1024) if buffered else pipe
    stream = io.TextIOWrapper(binary, write_through=True)
    configure_logs("info", "json", stream=stream)
    log = batched_log("gateway.request", lambda seconds, flush: None)
    assert isinstance(log, LineBatch)
    for number in range(100):
        log.add("info", "request", LoggedFacts(id=f"id{number:03}"))
    log.flush()
    complete = pipe.written.count(b"\n")
    pipe.room_bytes = 20
    structlog.get_logger("gateway").info("nor does this fit")
    pipe.room_bytes = 1_000_000
    structlog.get_logger("gateway").info("after")
    found = []
    for line in pipe.written.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    assert [each["id"] for each in found[:-2]] == [f"id{number:03}" for number in range(complete)]
    assert (found[-2]["lines"], found[-1]["event"]) == (101 - complete, "after")
    stream.close()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_full_disk_ends_nothing(form: str) -> None:
    file = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 - closed below, as far as it can be
    try:
        configure_logs("info", form, stream=file)
        for _ in range(1000):
            structlog.get_logger("agent").info("x" * 100)
            logging.getLogger("library").warning("y" * 100)
    finally:
        with contextlib.suppress(OSError):  # of the text some waits in its buffer
            file.close()


def test_a_log_that_was_closed_ends_nothing() -> None:
    file = io.StringIO()
    configure_logs("info", "text", stream=file)
    file.close()
    structlog.get_logger("agent").info("nobody reads this")


def test_a_line_of_json_has_level_time_and_traceback_and_no_secrets() -> None:
    written = io.BytesIO()
    file = io.TextIOWrapper(written)
    configure_logs("info", "json", stream=file)
    log = structlog.get_logger("gateway")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed", key="sk-tl-" + "a" * 40, odd={1: Path("/x")})
    line = json.loads(written.getvalue())
    assert list(line) == ["key", "odd", "event", "logger", "level", "timestamp", "exception"]
    assert (line["level"], line["key"]) == ("error", "sk-tl-***")
    assert line["odd"] == {"1": repr(Path("/x"))}
    assert line["exception"].endswith("ValueError: broken")
    assert line["timestamp"].endswith("Z")
    file.close()


def test_lines_of_a_batch_are_written_together_and_masked() -> None:
    disk = FullDisk()
    stream = io.TextIOWrapper(disk)
    configure_logs("info", "json", stream=stream)
    waiting: list[Callable[[], None]] = []

    def later(seconds: float, flush: Callable[[], None]) -> None:
        assert seconds == BATCH_S
        waiting.append(flush)

    log = batched_log("gateway.request", later)
    log.add("info", "request", LoggedFacts(id="one", path="/tlj_0123456789abcdef"))
    log.add("debug", "request", LoggedFacts(id="unwanted"))
    log.add("info", "request", LoggedFacts(id="two"))
    assert not disk.getvalue()
    [flush] = waiting
    flush()
    one, two = [json.loads(line) for line in disk.getvalue().splitlines()]
    assert (one["id"], one["path"], one["level"], two["id"]) == ("one", "/tlj_***", "info", "two")
    disk.full = True
    log.add("info", "request", LoggedFacts(id="lost"))
    log.add("info", "request", LoggedFacts(id="lost"))
    flush()
    disk.full = False
    log.add("info", "request", LoggedFacts(id="after"))
    flush()
    note, after = [json.loads(line) for line in disk.getvalue().splitlines()[2:]]
    assert (note["lines"], after["id"]) == (2, "after")
    stream.close()


def test_lines_of_a_batch_say_what_those_of_a_logger_do() -> None:
    kept: list[bytes] = []
    configure_logs("info", "json", stream=io.TextIOWrapper(io.BytesIO()), process="host-1")
    keep_lines(lambda lines, count: kept.extend(lines.splitlines()))
    waiting: list[Callable[[], None]] = []
    facts: dict[str, Any] = {"id": "one", "place": Path("/x"), "key": "sk-tl-" + "a" * 40}
    try:
        structlog.get_logger("gateway.request").warning("request", **facts)
        batched = batched_log("gateway.request", lambda seconds, flush: waiting.append(flush))
        batched.add("warning", "request", LoggedFacts(**facts))
        batched.add("warning", "request", LoggedFacts(id="two"))
        waiting.pop()()
    finally:
        keep_lines(None)
    logged, line, other = [json.loads(each) for each in kept]
    times = [datetime.fromisoformat(each.pop("timestamp")) for each in (logged, line)]
    assert line == logged
    assert times == sorted(times)
    assert other["id"] == "two"


@pytest.mark.parametrize("microseconds", [0, 1, 120_000, 999_999])
def test_times_of_a_batch_are_written_as_those_of_a_logger(microseconds: int) -> None:
    moment = datetime(2026, 11, 21, 20, 30, 5, microseconds, UTC)
    written = orjson.loads(orjson.dumps(moment, option=orjson.OPT_UTC_Z))
    seconds = int(moment.timestamp())
    assert written == to_microseconds(seconds * 1_000_000_000 + microseconds * 1000)


def test_lines_for_people_are_written_at_once() -> None:
    file = io.StringIO()
    configure_logs("info", "text", stream=file)
    batched_log("gateway.request", lambda seconds, flush: None).add("info", "request", LoggedFacts(id="one"))
    assert "id=one" in file.getvalue()


@pytest.mark.parametrize("style", ["json", "text"])
def test_each_line_names_the_process_where_several_write_to_one_log(style: str) -> None:
    stream = io.StringIO()
    configure_logs("info", style, stream=stream, process="host-1")
    structlog.get_logger("x").info("said")
    structlog.get_logger("x").info("of another", process="host-2")
    configure_logs("info", style, stream=stream)
    structlog.get_logger("y").info("alone")
    first, second, third = stream.getvalue().splitlines()
    assert "host-1" in first
    assert "host-2" in second
    assert "host-1" not in second
    assert "host" not in third


def test_the_stack_of_a_blocked_loop_is_shown_to_people() -> None:
    file = io.StringIO()
    configure_logs("info", "text", stream=file)
    structlog.get_logger("x").error("loop_blocked", stack=["a.py:1 outer", "b.py:2 inner"], untold=0)
    first, *rest = file.getvalue().splitlines()
    assert "loop_blocked" in first
    assert "untold=0" in first
    assert rest == ["a.py:1 outer", "b.py:2 inner"]


@pytest.mark.parametrize("style", ["json", "text"])
def test_who_keeps_lines_gets_them_as_json_with_their_logger(style: str) -> None:
    kept: list[bytes] = []
    configure_logs("info", style, stream=io.StringIO())
    keep_lines(lambda lines, count: kept.extend(lines.splitlines()))
    try:
        structlog.get_logger("gateway.fleet").warning("odd", key="sk-tl-" + "a" * 40)
        logging.getLogger("library").error("broken")
        batched = batched_log("gateway.request", lambda seconds, flush: flush())
        batched.add("info", "request", LoggedFacts(id="one"))
    finally:
        keep_lines(None)
    structlog.get_logger("x").info("kept by nobody")
    lines = [json.loads(line) for line in kept]
    assert [each["logger"] for each in lines][:2] == ["gateway.fleet", "library"]
    assert (lines[0]["level"], lines[0]["key"], lines[1]["event"]) == ("warning", "sk-tl-***", "broken")


@pytest.mark.parametrize("style", ["json", "text"])
def test_what_json_cannot_say_is_logged_as_text(style: str) -> None:
    """A directory whose name is no UTF-8; a number of more than 64 bits."""
    kept: list[bytes] = []
    configure_logs("info", style, stream=io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace"))
    keep_lines(lambda lines, count: kept.append(lines))
    try:
        structlog.get_logger("x").error("disk_short", directory="/state/\udcff", free_bytes=10**30)
    finally:
        keep_lines(None)
    found = json.loads(kept[0])
    assert (found["directory"], found["free_bytes"]) == ("/state/\\udcff", str(10**30))
    assert (found["event"], found["level"], found["logger"]) == ("disk_short", "error", "x")
