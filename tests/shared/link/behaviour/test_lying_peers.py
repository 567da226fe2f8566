"""A list of processes that names what is not there, not theirs, too much or twice (PROTOCOL §7.5)."""

from pathlib import Path

import pytest

from shared.identity import GatewayKeys
from shared.process.ports import free_port
from shared.protocol import limits
from shared.protocol.errors import ErrorCode, HandshakeRejected
from shared.protocol.peers import GatewayPeer, Peers
from tests.agent.support.canned import until
from tests.shared.link.test_processes import SLOTS, Directory, Process, fleet
from tests.support.identities import OTHER_GATEWAY
from tests.support.tunnels import Recorder, accepting, request_head


class Stranger(Process):
    """A process of another gateway."""

    @property
    def gateway_keys(self) -> GatewayKeys:
        return GatewayKeys(OTHER_GATEWAY)


async def test_addresses_where_nobody_is_cost_nobody_a_slot(tmp_path: Path) -> None:
    """Neither a closed port, nor a host that does not exist, nor what is no address at all."""
    async with fleet(tmp_path, "a", "b") as (here, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        urls = [f"ws://127.0.0.1:{free_port()}", "wss://nowhere.invalid", "ftp://x", "http://[", "\x00"]
        wrong = [GatewayPeer(f"x{number}", 1, url) for number, url in enumerate(urls)]
        a.tunnels[0].endpoint.send_peers(Peers((*a.directory.all, *wrong)))
        await until(lambda: here.links.count == 2 + len(wrong))
        assert a.level + b.level == SLOTS
        answer = Recorder()
        a.tunnels[0].endpoint.open(request_head(), answer)
        await until(lambda: here.registry.running == 1)
        for process in (a, b):
            process.tunnels[0].endpoint.send_peers(Peers(tuple(a.directory.all)))
        await until(lambda: here.links.count == 2)
        assert here.registry.running == 1
        assert (a.sessions, b.sessions) == (1, 1)


@pytest.mark.parametrize("code", [None, ErrorCode.REVOKED, ErrorCode.UNAUTHENTICATED])
async def test_an_address_of_another_gateway_gets_no_session_and_ends_none(
    tmp_path: Path, code: ErrorCode | None
) -> None:
    async with fleet(tmp_path, "a", "b") as (here, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        stranger = Stranger(Directory(GatewayPeer("c", 1), []))
        if code is not None:
            stranger.refusal = HandshakeRejected(code, "go away")
        async with accepting(stranger, stranger.directory) as url:
            a.tunnels[0].endpoint.send_peers(Peers((*a.directory.all, GatewayPeer("c", 1, url))))
            await until(lambda: (link := here.links.link_of("c")) is not None and link._attempts > 2)
            assert stranger.sessions == 0
            assert (a.level, b.level) == (2, 2)
            assert (a.sessions, b.sessions) == (1, 1)


async def test_its_own_process_under_two_names_has_one_session(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as (here, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        again = [GatewayPeer("twin", 1, a.url), GatewayPeer("b", 1, a.url)]
        a.tunnels[0].endpoint.send_peers(Peers((GatewayPeer("a", 1, a.url), *again)))
        await until(lambda: (link := here.links.link_of("twin")) is not None and link._attempts > 2)
        assert (a.sessions, b.sessions) == (1, 1)
        assert (a.level, b.level) == (2, 2)


async def test_a_list_beyond_its_bound_ends_that_tunnel_and_starts_no_links(tmp_path: Path) -> None:
    async with fleet(tmp_path, "a", "b") as (here, (a, b)):
        await until(lambda: (a.level, b.level) == (2, 2))
        many = tuple(GatewayPeer(f"x{number}", 1) for number in range(limits.PEERS + 1))
        said = Peers()
        object.__setattr__(said, "peers", many)
        a.tunnels[0].endpoint.send_peers(said)
        await until(lambda: len(a.tunnels) == 2)
        assert here.links.count <= 2
        assert b.sessions == 1
