"""Structured logs on stderr: text for people, JSON for machines. Never a body, a prompt or a key.

A log that cannot be written (a full disk, a reader that went away) is no reason to stop serving: its lines
are lost, and how many is said once it can be written again.
"""

import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TextIO

import orjson
import structlog

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

ISO = "iso"

_SECRET = re.compile(r"(sk-tl-|tlj_|eyJ)[A-Za-z0-9_.-]{8,}")
_SECRET_BYTES = re.compile(_SECRET.pattern.encode("ascii"))


def configure_logs(
    level: str,
    style: str,
    *,
    text_time: str = ISO,
    quiet: Mapping[str, int] = MappingProxyType({}),
    stream: TextIO | None = None,
) -> None:
    """Set up logging for the whole process, to ``stream`` or stderr.

    ``level`` is of :data:`LEVELS`; ``style`` is ``json``, ``text`` or ``auto`` (text on a terminal).
    ``text_time`` is the form of times in text, local ones unless it is ``ISO``. ``quiet`` has the least
    levels of what libraries log, by logger; of others it is ``warning``.
    """
    out = sys.stderr if stream is None else stream
    text = style == "text" or (style == "auto" and out.isatty())
    binary = None if text else getattr(out, "buffer", None)
    processors: list[Any] = _text_processors(text_time, colors=out.isatty()) if text else [_json_line]
    if not text and binary is None:
        processors.append(_decoded)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_factory(out, binary, _LOST_AS_TEXT if text else _LOST_AS_JSON),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(max(LEVELS[level], logging.WARNING))
    for name, least in quiet.items():
        logging.getLogger(name).setLevel(least)


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
            try:
                if self._lost:
                    self._stream.write(self._note(self._lost))
                    self._stream.flush()
                    self._lost = 0
                self._stream.write(data)
                self._stream.flush()
            except (OSError, ValueError):  # ValueError: closed
                self._lost += data.count(b"\n" if isinstance(data, bytes) else "\n")


class _LineLogger:
    """What structlog gives rendered lines to."""

    def __init__(self, writer: DroppingWriter, end: Any) -> None:
        self._write = writer.write
        self._end = end

    def msg(self, line: Any) -> None:
        self._write(line + self._end)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


_LOST_AS_JSON = '{{"event": "lines of the log were lost", "level": "warning", "lines": {}}}\n'
_LOST_AS_TEXT = "{} lines of the log were lost\n"


def _factory(out: TextIO, binary: Any, note: str) -> Callable[..., _LineLogger]:
    if binary is None:
        logger = _LineLogger(DroppingWriter(out, note.format), "\n")
    else:
        logger = _LineLogger(DroppingWriter(binary, lambda lines: note.format(lines).encode()), b"\n")
    return lambda *_: logger


def _text_processors(text_time: str, *, colors: bool) -> list[Any]:
    plain = structlog.dev.plain_traceback  # others show the values of variables
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt=text_time, utc=text_time == ISO),
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain),
        _masked,
    ]


_METHODS = {"warn": "warning", "exception": "error"}
"""Methods of loggers that are called otherwise than their levels."""


def _json_line(logger: Any, method: str, event: MutableMapping[str, Any]) -> bytes:
    """What is logged as one line: with its level, its time and, with ``exc_info``, the traceback."""
    event["level"] = _METHODS.get(method, method)
    event["timestamp"] = datetime.now(UTC).isoformat()[:-6] + "Z"
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(logger, method, event)
    line = orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS)
    if b"sk-tl-" in line or b"tlj_" in line or b"eyJ" in line:
        return _SECRET_BYTES.sub(rb"\1***", line)
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
