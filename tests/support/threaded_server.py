"""Runs a server of the standard library in a thread of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer

POLL_S = 0.01
"""So soon a server notices that it is to end."""


@contextmanager
def served_in_thread(server: HTTPServer) -> Iterator[str]:
    """``server`` answers during the block and is closed after it. Gives its address, ``http://127.0.0.1:PORT``."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL_S})
    with server:
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
