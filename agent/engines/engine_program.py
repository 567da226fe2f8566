"""What the programs have in common that the agent starts to serve models: their pipes, their log, their
HTTP."""

import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uvicorn

EXIT_UNUSABLE = 3
"""Exit status when the model cannot be served at all, so that starting again cannot help."""

KEY_VARIABLE = "TRUNKLINE_ENGINE_KEY"
"""Environment variable with the bearer key that requests must carry; needed on TCP, as any local user
connects."""

BACKLOG = 256
LEAVE_S = 1
"""How long answers may go on after the program was told to end: the agent has let them finish before that."""
KEEP_ALIVE_S = 3600
"""Longer than any client keeps an idle connection, so that never the engine closes one just as it is used."""


def take_standard_output() -> Callable[[bytes], None]:
    """Keep standard output for what the returned function writes, whole however much it is: whatever a
    library prints goes to standard error."""
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)

    def write(data: bytes) -> None:
        left = memoryview(data)
        with suppress(BrokenPipeError):
            while left:
                left = left[os.write(ours, left) :]

    return write


def log_to_standard_error() -> None:
    """Lines that begin with their level, which the agent reads."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s", force=True)
    for name in ("httpx", "filelock", "urllib3", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)


def listen(path: Path | None, port: int, key: str | None) -> socket.socket:
    """A listening socket that only this user reaches: by its file's mode, or on loopback with a ``key``.

    Raises SystemExit when there is neither."""
    if path is None:
        if not key:
            raise SystemExit(f"a TCP port needs a key in ${KEY_VARIABLE}")
        return socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(BACKLOG)
    return listener


def http_server(app: Any) -> "uvicorn.Server":
    """Serves the ASGI application ``app``."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=LEAVE_S,
        )
    )
