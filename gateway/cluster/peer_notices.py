"""Tells connected agents by PEERS when the gateway's processes change (PROTOCOL §4.10)."""

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

from gateway.domain.timers import Timers
from shared.protocol.endpoint import SessionEndpoint
from shared.protocol.errors import SessionClosed
from shared.protocol.peers import PEERS, PeerDirectory, Peers

AT_ONCE = 100
"""Agents told in one turn of the event loop."""


class NamedAgent(Protocol):
    @property
    def name(self) -> str: ...


class PeerSession(Protocol):
    """What is used of an agent's session."""

    @property
    def endpoint(self) -> SessionEndpoint: ...

    @property
    def closed(self) -> bool: ...

    @property
    def principal(self) -> NamedAgent: ...


class PeerNotices:
    """Belongs to the event loop's thread."""

    def __init__(self, directory: PeerDirectory, timers: Timers) -> None:
        self._directory = directory
        self._timers = timers
        self._sessions: WeakSet[PeerSession] = WeakSet()
        self._waiting: list[PeerSession] = []
        self._sending = False

    def agreed(self, session: PeerSession, capabilities: Sequence[str]) -> None:
        """A tunnel of that session is up; WELCOME has just named all processes."""
        if PEERS in capabilities:
            self._sessions.add(session)

    def __len__(self) -> int:
        return len(self._sessions)

    def changed(self) -> None:
        """There are others than before: tell everybody, so many in a turn of the loop."""
        self._waiting = list(self._sessions)
        if not self._sending:
            self._sending = True
            self._send_some()

    def _send_some(self) -> None:
        some, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
        for session in some:
            if session.closed:
                self._sessions.discard(session)
                continue
            try:
                session.endpoint.send_peers(Peers(tuple(self._directory.peers_for(session.principal.name))))
            except SessionClosed:
                self._sessions.discard(session)
        self._sending = bool(self._waiting)
        if self._sending:
            self._timers.call_soon(self._send_some)
