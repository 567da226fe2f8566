"""Structured logs on stderr: text for people, JSON for machines. Never a body, a prompt or a key.

A log that cannot be written (a full disk, a reader that went away) is no reason to stop serving: its lines
are lost, and how many is said once it can be written again.
"""

import logging
import re
import sys
from collections.abc import Callable, Mapping
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
    time_format = text_time if text else ISO
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt=time_format, utc=time_format == ISO),
    ]
    binary = None if text else getattr(out, "buffer", None)
    structlog.configure(
        processors=[*shared, *_renderers(text, out.isatty(), as_bytes=binary is not None), _masked],
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
    """Writes to a stream that may fail. ``note`` makes a line of the number of lines that were lost."""

    def __init__(self, stream: Any, note: Callable[[int], Any]) -> None:
        self._stream = stream
        self._note = note
        self._lost = 0
        self._unflushed = False

    def write(self, data: Any) -> int:
        try:
            if self._lost:
                self._stream.write(self._note(self._lost))
                self._stream.flush()
                self._lost = 0
            self._stream.write(data)
            self._unflushed = True
        except (OSError, ValueError):  # ValueError: closed
            self._lost += data.count(b"\n" if isinstance(data, bytes) else "\n")
            self._unflushed = False
        return len(data)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._lost += self._unflushed
        self._unflushed = False


_LOST_AS_JSON = '{{"event": "lines of the log were lost", "level": "warning", "lines": {}}}\n'
_LOST_AS_TEXT = "{} lines of the log were lost\n"


def _factory(out: TextIO, binary: Any, note: str) -> Any:
    if binary is None:
        text: Any = DroppingWriter(out, note.format)
        return structlog.PrintLoggerFactory(text)
    writer: Any = DroppingWriter(binary, lambda lines: note.format(lines).encode())
    return structlog.BytesLoggerFactory(writer)


def _renderers(text: bool, colors: bool, *, as_bytes: bool) -> list[Any]:
    if text:
        plain = structlog.dev.plain_traceback  # others show the values of variables
        return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    serializer = _dumps if as_bytes else lambda value, **options: _dumps(value, **options).decode()
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=serializer)]


def _dumps(value: Any, default: Any = None, **_options: Any) -> bytes:
    return orjson.dumps(value, default=default or str, option=orjson.OPT_NON_STR_KEYS)


def _masked(logger: Any, method: str, line: Any) -> Any:
    """The rendered line without keys, join tokens and JWTs, which clients put into paths, names and ids."""
    if isinstance(line, bytes):
        found = b"sk-tl-" in line or b"tlj_" in line or b"eyJ" in line
        return _SECRET_BYTES.sub(rb"\1***", line) if found else line
    found = "sk-tl-" in line or "tlj_" in line or "eyJ" in line
    return _SECRET.sub(r"\1***", line) if found else line


class _Forward(logging.Handler):
    """Hands records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        level = "error" if record.levelno >= logging.ERROR else "warning"
        getattr(log, level)(record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
