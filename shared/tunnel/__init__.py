"""Runs a session over a WebSocket on asyncio, which is also what gives it the time (PROTOCOL §2, §8).

:class:`Tunnel` is an asyncio protocol on a raw transport. The WebSocket is the sans-I/O core of the
``websockets`` library, the session is ours; these files move bytes between them, once in a turn of the event
loop: whatever became ready in a turn leaves in one write, in as few messages as it fits in.

An agent calls :func:`dial`. A gateway hands :class:`AcceptedTunnel` to its HTTP server as the protocol of
upgraded connections, with a :class:`TunnelAcceptor` that decides who gets in.
"""

from shared.tunnel.accept import Accepted, AcceptedTunnel, TunnelAcceptor
from shared.tunnel.base import PATH, SUBPROTOCOL, Tunnel
from shared.tunnel.deadline_wheel import DeadlineWheel
from shared.tunnel.dial import DialledTunnel, dial
from shared.tunnel.handshake_queue import HandshakeQueue
from shared.tunnel.read_gatherer import ReadGatherer, read_gatherer
from shared.tunnel.traffic import TunnelTraffic

__all__ = [
    "PATH",
    "SUBPROTOCOL",
    "Accepted",
    "AcceptedTunnel",
    "DeadlineWheel",
    "DialledTunnel",
    "HandshakeQueue",
    "ReadGatherer",
    "Tunnel",
    "TunnelAcceptor",
    "TunnelTraffic",
    "dial",
    "read_gatherer",
]
