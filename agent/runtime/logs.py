"""Logging to stderr: readable on a terminal, JSON for machines. Never a body, a prompt or a key.

A log that cannot be written (a full disk, a reader that went away) is no reason to stop serving: its lines
are lost, and how many is said once it can be written again.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

import structlog

LEVELS = ("debug", "info", "warning", "error")


class DroppingWriter:
    """The part of a text stream that loggers use, over one that may fail. ``note`` makes a line of the number
    of lines that were lost."""

    def __init__(self, stream: TextIO, note: Callable[[int], str]) -> None:
        self._stream = stream
        self._note = note
        self._lost = 0
        self._unflushed = False

    def write(self, text: str) -> int:
        try:
            if self._lost:
                self._stream.write(self._note(self._lost))
                self._stream.flush()
                self._lost = 0
            self._stream.write(text)
            self._unflushed = True
        except (OSError, ValueError):  # ValueError: closed
            self._lost += text.count("\n")
            self._unflushed = False
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._lost += self._unflushed
        self._unflushed = False

    def isatty(self) -> bool:
        return self._stream.isatty()


def _lost_as_json(lines: int) -> str:
    return f'{{"event": "lines of the log were lost", "level": "warning", "lines": {lines}}}\n'


def _lost_as_text(lines: int) -> str:
    return f"{lines} lines of the log were lost\n"


def set_up(format_name: str, level: str, stream: TextIO | None = None) -> None:
    """``format_name`` is ``text`` or ``json``; ``level`` one of LEVELS. Affects the whole process."""
    note = _lost_as_json if format_name == "json" else _lost_as_text
    out: Any = DroppingWriter(sys.stderr if stream is None else stream, note)
    last: Any = (
        structlog.processors.JSONRenderer()
        if format_name == "json"
        else structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=24)
    )
    exceptions = [structlog.processors.format_exc_info] if format_name == "json" else []
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if format_name == "json" else "%H:%M:%S", utc=False),
            *exceptions,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        stream=out, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
