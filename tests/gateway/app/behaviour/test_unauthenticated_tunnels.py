"""How many strangers an address may have at once."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.app.factories import agent_settings, client_of, trusted_proxies
from gateway.auth import AgentDirectory
from gateway.fleet.endpoint import AgentEndpoint
from gateway.fleet.registry import Registry
from gateway.observability.metrics import Metrics
from gateway.runtime.config import Settings
from gateway.storage.changes import ChangeCounter
from gateway.storage.errors import StateBusy
from shared.identity import GatewayKeys
from shared.protocol.errors import DialFailed, LocalError
from shared.tunnel import AcceptedTunnel, TunnelTraffic
from tests.gateway.fleet.agent_house import Host, eventually, running_gateway
from tests.support.tunnels import Acceptor, Recorder, accepting, dial_with_token


class Stranger:
    """What the endpoint uses of a tunnel before WELCOME."""

    def __init__(self, address: str) -> None:
        self.peer_address = f"{address}:50000"
        self.upgrade_fields: list[tuple[bytes, bytes]] = []
        self.traffic = TunnelTraffic()


def endpoint_for(settings: Settings, **bounds: int) -> AgentEndpoint:
    metrics, nobody = Metrics(), SimpleNamespace(changes=ChangeCounter(lambda: 0))
    changes: dict[str, Any] = {**bounds} or {"max_strangers_per_address": 1}
    one = replace(agent_settings(settings), **changes)
    return AgentEndpoint(
        nobody,  # type: ignore[arg-type]
        Registry(metrics, lambda: 0.0),
        metrics,
        one,
        client_of=client_of(trusted_proxies(settings)),
    )


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
    endpoint = endpoint_for(Settings())
    strangers: list[Any] = [Stranger(address) for address in addresses]
    endpoint.connected(strangers[0])
    if together:
        with pytest.raises(LocalError, match="from your address"):
            endpoint.connected(strangers[1])
        endpoint.disconnected(strangers[0])
    endpoint.connected(strangers[1])
    assert endpoint.unauthenticated == (1 if together else 2)


def test_strangers_behind_a_trusted_proxy_are_counted_by_what_it_says_of_them() -> None:
    endpoint = endpoint_for(Settings(trusted_proxies=["10.0.0.0/8"]))
    strangers: list[Any] = [Stranger("10.0.0.1") for _ in range(3)]
    for stranger, told in zip(strangers, (b"192.0.2.1", b"6.6.6.6, 192.0.2.1", b"192.0.2.2"), strict=True):
        stranger.upgrade_fields = [(b"x-forwarded-for", told)]
    endpoint.connected(strangers[0])
    with pytest.raises(LocalError, match="from your address"):
        endpoint.connected(strangers[1])
    endpoint.connected(strangers[2])


def test_what_strangers_say_of_themselves_counts_for_nothing() -> None:
    endpoint = endpoint_for(Settings(trusted_proxies=["10.0.0.0/8"]))
    strangers: list[Any] = [Stranger("192.0.2.9") for _ in range(2)]
    for stranger, told in zip(strangers, (b"192.0.2.1", b"192.0.2.2"), strict=True):
        stranger.upgrade_fields = [(b"x-forwarded-for", told)]
    endpoint.connected(strangers[0])
    with pytest.raises(LocalError, match="from your address"):
        endpoint.connected(strangers[1])


def test_behind_a_terminator_that_is_not_named_only_all_strangers_are_counted() -> None:
    settings = agent_settings(Settings(behind_tls_terminator=True))
    assert settings.max_strangers_per_address == settings.max_strangers
    assert agent_settings(Settings()).max_strangers_per_address < settings.max_strangers


async def test_a_tunnel_tells_the_header_of_its_upgrade_while_it_comes_in() -> None:
    told: list[Any] = []

    class Listening(Acceptor):
        def connected(self, tunnel: AcceptedTunnel) -> None:
            told.append(dict(tunnel.upgrade_fields))
            super().connected(tunnel)

    acceptor = Listening()
    async with accepting(acceptor) as url:
        tunnel = await dial_with_token(url, Recorder())
        await acceptor.listener.until("attached")
        assert told[0][b"sec-websocket-protocol"] == b"trunkline.1"
        assert acceptor.tunnels[0].upgrade_fields == ()
        tunnel.abort()


@pytest.mark.usefixtures("no_leaks")
async def test_while_the_gateways_key_cannot_be_read_agents_are_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(directory: AgentDirectory) -> GatewayKeys:
        raise StateBusy("disk I/O error")

    async with running_gateway(tmp_path) as gateway:
        with monkeypatch.context() as patch:
            patch.setattr(AgentDirectory, "gateway_keys", property(failing))
            with pytest.raises(DialFailed, match="503"):
                await Host(gateway).dial()
            await eventually(lambda: not gateway.agents.unauthenticated)
        await Host(gateway).dial()
