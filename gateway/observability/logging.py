"""Structured logs on stderr: text on a terminal, JSON elsewhere. Never the content of a request."""

import contextlib
import logging
import re
import sys
from typing import Any

import orjson
import structlog

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_QUIET = {
    "uvicorn": logging.ERROR,
    "uvicorn.error": logging.ERROR,
    "websockets": logging.CRITICAL,
    # quotes what it could not parse
    "python_multipart": logging.CRITICAL,
    "asyncio": logging.WARNING,
}


def configure(level: str, style: str) -> None:
    """Set up logging for the process. ``level`` is of :data:`LEVELS`; ``style`` is ``json``, ``text`` or
    ``auto`` (text on a terminal)."""
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, *_renderers(text), _masked],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_factory(text),
        cache_logger_on_first_use=True,
    )
    _adopt_stdlib(LEVELS[level])


class _Lossy:
    """A stream without errors: what a full disk or a closed pipe does not take is lost, and work goes on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(data)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _factory(text: bool) -> Any:
    stream: Any = _Lossy(sys.stderr if text else sys.stderr.buffer)
    return structlog.PrintLoggerFactory(stream) if text else structlog.BytesLoggerFactory(stream)


def _renderers(text: bool) -> list[Any]:
    if text:
        return [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_dumps)]


_SECRET = re.compile(r"(sk-tl-|tlj_|eyJ)[A-Za-z0-9_.-]{8,}")
_SECRET_BYTES = re.compile(_SECRET.pattern.encode("ascii"))


def _masked(logger: Any, method: str, line: Any) -> Any:
    """The rendered line without keys, join tokens and JWTs, wherever clients have put them: in a path, in a
    name, in a request's id."""
    if isinstance(line, bytes):
        found = b"sk-tl-" in line or b"tlj_" in line or b"eyJ" in line
        return _SECRET_BYTES.sub(rb"\1***", line) if found else line
    found = "sk-tl-" in line or "tlj_" in line or "eyJ" in line
    return _SECRET.sub(r"\1***", line) if found else line


def _dumps(value: Any, default: Any = None, **_options: Any) -> bytes:
    return orjson.dumps(value, default=default or str, option=orjson.OPT_NON_STR_KEYS)


def _adopt_stdlib(level: int) -> None:
    """What libraries log goes the same way; those that would repeat or quote requests say errors only."""
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(max(level, logging.WARNING))
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(least)
    logging.getLogger("uvicorn.error").addFilter(_unfinished_is_said_elsewhere)


def _unfinished_is_said_elsewhere(record: logging.LogRecord) -> bool:
    """Uvicorn complains when an answer is left unended, which is how a broken one is shown to its client."""
    return "returned without completing response" not in record.getMessage()


class _Forward(logging.Handler):
    """Hands records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        level = "error" if record.levelno >= logging.ERROR else "warning"
        getattr(log, level)(record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
