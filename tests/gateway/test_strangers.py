"""How many strangers an address may have at once."""

from typing import Any

import pytest

from gateway.agent_endpoint import AgentEndpoint, AgentEndpointSettings
from gateway.metrics import Metrics
from gateway.registry import Registry
from shared.errors import LocalError
from shared.tunnel import TunnelTraffic


class Stranger:
    """What the endpoint uses of a tunnel before WELCOME."""

    def __init__(self, address: str) -> None:
        self.peer_address = f"{address}:50000"
        self.traffic = TunnelTraffic()


@pytest.mark.parametrize(
    ("addresses", "together"),
    [
        (("192.0.2.1", "192.0.2.1"), True),
        (("192.0.2.1", "192.0.2.2"), False),
        (("2001:db8::1", "2001:db8::ffff:2"), True),
        (("2001:db8::1", "2001:db8:0:1::1"), False),
        (("::ffff:192.0.2.1", "192.0.2.1"), True),
        (("::ffff:192.0.2.1", "::ffff:192.0.2.2"), False),
        (("fe80::1%eth0", "fe80::2%eth0"), True),
    ],
)
def test_strangers_are_counted_by_address_and_of_ipv6_by_network(
    addresses: tuple[str, str], together: bool
) -> None:
    metrics, nobody = Metrics(), Any
    endpoint = AgentEndpoint(
        nobody,  # type: ignore[arg-type]
        Registry(metrics, lambda: 0.0),
        metrics,
        AgentEndpointSettings(max_strangers_per_address=1),
    )
    strangers: list[Any] = [Stranger(address) for address in addresses]
    endpoint.connected(strangers[0])
    if together:
        with pytest.raises(LocalError, match="from your address"):
            endpoint.connected(strangers[1])
        endpoint.disconnected(strangers[0])
    endpoint.connected(strangers[1])
    assert endpoint.strangers == (1 if together else 2)
