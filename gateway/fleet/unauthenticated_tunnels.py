"""Bounds the connections that have not yet proved who they are, in all and from one address."""

from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address, ip_network

from shared.protocol.errors import LocalError
from shared.tunnel import AcceptedTunnel


class UnauthenticatedTunnels:
    """Belongs to the event loop's thread."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._tunnels: dict[AcceptedTunnel, str] = {}
        """Tunnel → its address or network."""
        self._addresses: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tunnels)

    def __iter__(self) -> Iterator[AcceptedTunnel]:
        return iter(self._tunnels)

    def add(self, tunnel: AcceptedTunnel, address: str) -> None:
        """Takes one in. Raises LocalError when there are too many."""
        address = _network_of(address)
        if len(self._tunnels) >= self._most:
            raise LocalError("too many connections are waiting to be authenticated")
        if self._addresses[address] >= self._most_per_address:
            raise LocalError("too many connections from your address are waiting to be authenticated")
        self._tunnels[tunnel] = address
        self._addresses[address] += 1

    def discard(self, tunnel: AcceptedTunnel) -> bool:
        """Removes one that is gone or has proved who it is. False when it was not here."""
        address = self._tunnels.pop(tunnel, None)
        if address is None:
            return False
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        return True


def _network_of(address: str) -> str:
    """What counts as one address: itself, of IPv6 its /64, which one customer has."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        if not parsed.is_loopback:
            return str(ip_network((parsed, 64), strict=False))
    return str(parsed)
