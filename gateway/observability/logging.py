"""The gateway's log: what libraries that repeat or quote requests may say."""

import logging

from shared.process.logs import configure_logs

_QUIET = {
    "uvicorn": logging.ERROR,
    "uvicorn.error": logging.ERROR,
    "websockets": logging.CRITICAL,
    # quotes what it could not parse
    "python_multipart": logging.CRITICAL,
    # what it says of a connection that broke, whoever used it says in an error of ours
    "sqlalchemy.pool": logging.CRITICAL,
    "asyncio": logging.WARNING,
}


def configure(level: str, style: str, process: str | None = None) -> None:
    """Set up logging for the process. ``level``, ``style`` and ``process`` are as of
    :func:`shared.process.logs.configure_logs`."""
    configure_logs(level, style, quiet=_QUIET, process=process)
    logging.getLogger("uvicorn.error").addFilter(_unfinished_is_said_elsewhere)


def _unfinished_is_said_elsewhere(record: logging.LogRecord) -> bool:
    """Uvicorn complains when an answer is left unended, which is how a broken one is shown to its client."""
    return "returned without completing response" not in record.getMessage()
