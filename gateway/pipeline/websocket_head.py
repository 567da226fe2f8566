"""What a client that asks for a WebSocket says of it in its head: subprotocols, and its key among them. Pure.

Pages in browsers can set no header field, so OpenAI's realtime API takes the key as a subprotocol:
``realtime, openai-insecure-api-key.KEY, openai-beta.realtime-v1``.
"""

from collections.abc import Iterable
from typing import NamedTuple

PROTOCOL = b"sec-websocket-protocol"
KEY_PREFIX = "openai-insecure-api-key."


class Subprotocols(NamedTuple):
    """Those that a client offers, in order."""

    offered: tuple[str, ...] = ()
    """For the engine: without the one that carries the key."""
    credential: str | None = None
    """The one that carries the key, whole."""

    @property
    def key(self) -> str | None:
        """The API key; None: there is none among them."""
        return None if self.credential is None else self.credential.removeprefix(KEY_PREFIX)

    def chosen(self, by_engine: str | None) -> str | None:
        """What the client is told was chosen. A browser that offered some takes no answer without one, so
        where the engine chose none, a client that sent its key so gets the first one; alone, its own."""
        if by_engine in self.offered:
            return by_engine
        if self.credential is None:
            return None
        return self.offered[0] if self.offered else self.credential


def read_subprotocols(headers: Iterable[tuple[bytes, bytes]]) -> Subprotocols:
    """Those in the head of a request, whose names are in lower case."""
    names = [
        name.strip()
        for field, value in headers
        if field == PROTOCOL
        for name in value.decode("latin-1").split(",")
    ]
    credential = next((name for name in names if name.startswith(KEY_PREFIX)), None)
    return Subprotocols(tuple(name for name in names if name and not name.startswith(KEY_PREFIX)), credential)
