"""The backend for every engine with the OpenAI HTTP surface, over TCP or a Unix socket."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from agent.backends.base import EngineResponse
from shared.messages import DeploymentState, RequestHead


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimeouts:
    """How long an engine may be silent. None: for ever."""

    connect_s: float = 5.0
    first_byte_s: float | None = 600.0
    """From the end of the request's body to the response's head."""
    idle_s: float | None = 300.0
    """Between two pieces of the response's body."""
    probe_s: float = 5.0
    """For a whole answer to a question about models, health or load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine. Requests go to ``url``, its scheme, host, port and path prefix, and nowhere else.

    With ``unix_socket`` the connection is made to that socket and ``url`` (``http://localhost`` will do)
    only fills the Host header.
    """

    url: str
    name: str = "engine"
    unix_socket: Path | None = None
    api_key: str | None = field(default=None, repr=False)
    """Sent as ``authorization: Bearer …`` in place of whatever the request carried."""
    slots: int | None = None
    """Requests it may have at once; None: what the engine reports, else the default of its kind."""
    models: tuple[str, ...] = ()
    """Only these are offered; empty: all it lists."""
    version: str = ""
    refresh_s: float = 5.0
    """How often models, health and load are asked for."""
    timeouts: EngineTimeouts = EngineTimeouts()


class OpenAIHTTPBackend:
    """Implements :class:`agent.backends.base.Backend`."""

    def __init__(self, settings: EngineSettings) -> None:
        self.name = settings.name
        self._settings = settings

    async def start(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def deployments(self) -> tuple[DeploymentState, ...]:
        raise NotImplementedError

    def subscribe(self, on_change: Callable[[], None]) -> None:
        raise NotImplementedError

    async def refresh(self) -> None:
        """Look at the engine now, outside the rhythm: after it was seen to start or to fail."""
        raise NotImplementedError

    def request(
        self, head: RequestHead, body: AsyncIterator[bytes]
    ) -> AbstractAsyncContextManager[EngineResponse]:
        raise NotImplementedError
