"""What is counted of one tunnel."""

from dataclasses import dataclass


@dataclass(slots=True)
class TunnelTraffic:
    """What passed through one tunnel: WebSocket messages and bytes on the wire, both ways."""

    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
