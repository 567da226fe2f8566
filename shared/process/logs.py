"""Structured logs on stderr: text for people, JSON for machines. Never a body, a prompt or a key.

A log that cannot be written (a full disk, a reader that went away) is no reason to stop serving: its lines
are lost, and how many is said once it can be written again.
"""

import atexit
import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from time import time_ns
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TextIO, cast

import orjson
import structlog
from msgspec import json

from shared.process.utc_text import to_microseconds

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

ISO = "iso"

_process: str | None = None
"""What each line calls the process that wrote it, where several write to one log."""

Keep = Callable[[bytes, int], None]
"""Takes lines in JSON as they are written, each with its end, and how many they are. Called on any thread;
must be quick, and raise nothing."""

_keep: Keep | None = None

_SECRET = re.compile(r"(sk-tl-|tlj_|eyJ)[A-Za-z0-9_.-]{8,}")
_SECRET_BYTES = re.compile(_SECRET.pattern.encode("ascii"))


def configure_logs(
    level: str,
    style: str,
    *,
    text_time: str = ISO,
    quiet: Mapping[str, int] = MappingProxyType({}),
    stream: TextIO | None = None,
    process: str | None = None,
) -> None:
    """Set up logging for the whole process, to ``stream`` or stderr. ``process`` names it in each line.

    ``level`` is of :data:`LEVELS`; ``style`` is ``json``, ``text`` or ``auto`` (text on a terminal).
    ``text_time`` is the form of times in text, local ones unless it is ``ISO``. ``quiet`` has the least
    levels of what libraries log, by logger; of others it is ``warning``.
    """
    global _process
    _process = process
    out = sys.stderr if stream is None else stream
    text = style == "text" or (style == "auto" and out.isatty())
    binary = None if text else getattr(out, "buffer", None)
    processors: list[Any] = _text_processors(text_time, colors=out.isatty()) if text else [_json_line, _kept]
    if not text and binary is None:
        processors.append(_decoded)
    make = _line_loggers(out, binary, _LOST_AS_TEXT if text else _LOST_AS_JSON, LEVELS[level])
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=make,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(max(LEVELS[level], logging.WARNING))
    for name, least in quiet.items():
        logging.getLogger(name).setLevel(least)


def keep_lines(keep: Keep | None) -> None:
    """Have every line that is logged from now on given to ``keep`` as well, as JSON whatever the style; None:
    no more."""
    global _keep
    _keep = keep


_LINE_END = ord("\n")


class DroppingWriter:
    """Writes lines to a stream that may fail. ``note`` makes a line of the number of lines that were lost."""

    def __init__(self, stream: Any, note: Callable[[int], Any]) -> None:
        self._stream = stream
        self._note = note
        self._lost = 0
        self._lock = threading.Lock()

    def write(self, data: Any) -> None:
        """Lines, whole: they are there when this returns, or are counted as lost."""
        with self._lock:
            if self._lost:
                if self._put(self._note(self._lost)):
                    self._lost += self._lines(data)
                    return
                self._lost = 0
            self._lost = self._lines(self._put(data))

    def _put(self, data: Any) -> Any:
        """What of it could not be written."""
        try:
            self._stream.write(data)
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: closed
            return data
        return ""

    @staticmethod
    def _lines(data: Any) -> int:
        return int(data.count("\n"))


class DroppingBytesWriter(DroppingWriter):
    """The same for a stream of bytes. Nothing waits in its buffer: a disk may take some lines of many, and
    then those are written, and only the others are lost."""

    def __init__(self, stream: Any, note: Callable[[int], bytes]) -> None:
        super().__init__(stream, note)
        self._raw = getattr(stream, "raw", stream)
        self._torn = False
        """The last line that was written has no end."""

    def _put(self, data: bytes) -> bytes:
        whole = b"\n" + data if self._torn else data
        left = memoryview(whole)
        try:
            self._stream.flush()  # what others have written
            while left and (size_bytes := self._raw.write(left)):  # None: it takes nothing now
                self._torn = left[size_bytes - 1] != _LINE_END
                left = left[size_bytes:]
        except (OSError, ValueError):  # ValueError: closed
            pass
        return data[-len(left) :] if left else b""

    @staticmethod
    def _lines(data: bytes) -> int:
        return data.count(b"\n")


BATCH_S = 0.02
"""So long a line of a :class:`LineBatch` may wait to be written with others."""


Later = Callable[[float, Callable[[], None]], object]

_now = datetime.now


class EventFacts(Protocol):
    """The facts of an event: a Struct of msgspec that leaves out what is None (``omit_defaults``), and has
    these members, usually the last, for its log."""

    __struct_fields__: ClassVar[tuple[str, ...]]
    event: str | None
    logger: str | None
    process: str | None
    level: str | None
    timestamp: datetime | None


class EventLog(Protocol):
    """Takes what is logged, as plain facts of each event."""

    def add(self, level: str, event: str, facts: EventFacts) -> None:
        """Log ``event``, with ``facts``, which are the log's from now on. ``level`` is of :data:`LEVELS`."""
        ...


_encode = json.Encoder(enc_hook=repr).encode


class LineBatch:
    """A log for lines of which many come every second. They are made at once and written together; those of
    loggers may stand before them. To be used on the event loop's thread."""

    def __init__(self, write: Callable[[bytes], None], least: int, later: Later, name: str) -> None:
        """``least`` is the lowest level that is written; ``later`` is the event loop's ``call_later``;
        ``name`` is the logger's."""
        self._name = name
        self._write = write
        self._later = later
        self._least = least
        self._lines: list[bytes] = []
        atexit.register(self.flush)

    def add(self, level: str, event: str, facts: EventFacts) -> None:
        """See :class:`EventLog`."""
        if LEVELS[level] < self._least:
            return
        facts.event, facts.logger, facts.process = event, self._name, _process
        facts.level, facts.timestamp = level, _now(UTC)
        if not self._lines:
            self._later(BATCH_S, self.flush)
        self._lines.append(_encode(facts))

    def flush(self) -> None:
        """Write what waits."""
        if self._lines:
            lines, self._lines = self._lines, []
            lines.append(b"")
            written = _without_secrets(b"\n".join(lines))
            self._write(written)
            if _keep is not None:
                _keep(written, len(lines) - 1)


class LoggedEvents:
    """An :class:`EventLog` that gives all to a logger of structlog."""

    def __init__(self, name: str) -> None:
        self._log = structlog.get_logger(name).bind()

    def add(self, level: str, event: str, facts: EventFacts) -> None:
        """See :class:`EventLog`."""
        said = ((name, getattr(facts, name)) for name in facts.__struct_fields__)
        getattr(self._log, level)(event, **{name: value for name, value in said if value is not None})


class _LineLogger:
    """What structlog gives rendered lines to."""

    def __init__(self, writer: DroppingWriter, end: Any, least: int, name: str) -> None:
        self.name = name
        self.write = writer.write
        self.least = least
        """The lowest level that comes here."""
        self._end = end

    def msg(self, line: Any) -> None:
        self.write(line + self._end)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


_LOST_AS_JSON = '{{"event": "lines of the log were lost", "level": "warning", "lines": {}}}\n'
_LOST_AS_TEXT = "{} lines of the log were lost\n"


def _line_loggers(out: TextIO, binary: Any, note: str, least: int) -> Callable[..., _LineLogger]:
    """Makes the logger of a name; all write to the same stream."""
    if binary is None:
        writer, end = DroppingWriter(out, note.format), cast(Any, "\n")
    else:
        writer, end = DroppingBytesWriter(binary, lambda lines: note.format(lines).encode()), b"\n"
    return lambda *names: _LineLogger(writer, end, least, names[0] if names else "")


def batched_log(name: str, later: Later) -> EventLog:
    """A :class:`LineBatch` where the log is JSON and written as bytes, else an ordinary logger's."""
    config = structlog.get_config()
    logger = config["logger_factory"](name)
    if isinstance(logger, _LineLogger) and config["processors"][-1] is _kept:
        return LineBatch(logger.write, logger.least, later, name)
    return LoggedEvents(name)


def _text_processors(text_time: str, *, colors: bool) -> list[Any]:
    plain = structlog.dev.plain_traceback  # others show the values of variables
    return [
        _with_process,
        _kept_as_json,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt=text_time, utc=text_time == ISO),
        _with_stack_as_text,
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain),
        _masked,
    ]


def _kept_as_json(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """What keeps lines gets them in JSON, whatever the form in which they are written."""
    if _keep is not None:
        _keep(_json_line(logger, method, dict(event)) + b"\n", 1)
    return event


def _with_stack_as_text(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """The renderer raises TypeError where the stack of a line is a list of entries, as a watchdog has it."""
    stack = event.get("stack")
    if isinstance(stack, list):
        event["stack"] = "\n".join(stack)
    return event


def _with_process(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if _process is not None:
        event.setdefault("process", _process)
    return event


_METHODS = {"warn": "warning", "exception": "error"}
"""Methods of loggers that are called otherwise than their levels."""


def _json_line(logger: Any, method: str, event: MutableMapping[str, Any]) -> bytes:
    """What is logged as one line: with its level, its time and, with ``exc_info``, the traceback."""
    if _process is not None:
        event.setdefault("process", _process)
    if logger is not None and logger.name:
        event.setdefault("logger", logger.name)
    event["level"] = _METHODS.get(method, method)
    event["timestamp"] = to_microseconds(time_ns())
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(logger, method, event)
    try:
        written = orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        written = orjson.dumps({_as_text(name): _as_text(value) for name, value in event.items()})
    line = _without_secrets(written)
    return bytes(memoryview(line))  # what orjson gives holds a block of 8 KiB or more, however short it is


def _as_text(value: object) -> str:
    """For what JSON cannot say: names of files that are no UTF-8, numbers of more than 64 bits."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _without_secrets(text: bytes) -> bytes:
    """Lines in JSON without what :func:`_masked` takes out of rendered ones."""
    # of sk-tl- what is found soonest; one letter is found far sooner than several, and few lines have these
    if (
        text.find(b"-tl-") >= 0
        or (text.find(b"j") >= 0 and text.find(b"tlj_") >= 0)
        or (text.find(b"J") >= 0 and text.find(b"eyJ") >= 0)
    ):
        return _SECRET_BYTES.sub(rb"\1***", text)
    return text


def _kept(logger: Any, method: str, line: bytes) -> bytes:
    if _keep is not None:
        _keep(line + b"\n", 1)
    return line


def _decoded(logger: Any, method: str, line: bytes) -> str:
    return line.decode()


def _masked(logger: Any, method: str, line: str) -> str:
    """The rendered line without keys, join tokens and JWTs, which clients put into paths, names and ids."""
    return _SECRET.sub(r"\1***", line) if "sk-tl-" in line or "tlj_" in line or "eyJ" in line else line


class _Forward(logging.Handler):
    """Hands records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        level = "error" if record.levelno >= logging.ERROR else "warning"
        getattr(log, level)(record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
