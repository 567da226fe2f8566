"""Logging to stderr: readable on a terminal, JSON for machines. Never a body, a prompt or a key."""

import logging
import sys
from typing import Any, TextIO

import structlog

LEVELS = ("debug", "info", "warning", "error")


def set_up(format_name: str, level: str, stream: TextIO | None = None) -> None:
    """``format_name`` is ``text`` or ``json``; ``level`` one of LEVELS. Affects the whole process."""
    out = sys.stderr if stream is None else stream
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
