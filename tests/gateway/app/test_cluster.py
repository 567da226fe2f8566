"""What a process is among those of its gateway, by its settings and its store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.app.cluster import Cluster, make_cluster
from gateway.cluster.ownership import SoleOwner
from gateway.cluster.peers import StaticPeerDirectory
from gateway.domain.store_address import StoreAddress
from gateway.fleet.session import AgentSession
from gateway.runtime.config import ConfigError, Settings
from gateway.storage import Store
from shared.protocol.peers import GatewayPeer
from tests.gateway.cluster.test_demand import Timers
from tests.support.tls import make_certificate


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "files", serve=True) as store:
        yield store


@pytest.fixture
def server(tmp_path: Path, postgres_address: StoreAddress) -> Iterator[Store]:
    with Store.open(tmp_path / "server", serve=True, address=postgres_address) as store:
        yield store


def settings(**cluster: object) -> Settings:
    return Settings.model_validate({"cluster": cluster})


async def made(given: Settings, store: Store) -> Cluster:
    return make_cluster(given, store, Timers())


async def test_a_gateway_with_files_is_one_process_and_names_none(files: Store) -> None:
    cluster = await made(Settings(), files)
    assert (cluster.peers, cluster.member, cluster.processes.count) == (None, None, 1)
    assert isinstance(cluster.ownership, SoleOwner)
    assert files.processes.list().records == ()


async def test_processes_with_files_are_those_that_are_named(files: Store) -> None:
    cluster = await made(settings(process="a", url="https://a.example", peers=["a", "b=https://b"]), files)
    assert isinstance(cluster.peers, StaticPeerDirectory)
    assert cluster.member is None
    assert cluster.peers.own.url == "https://a.example"
    assert {peer.process for peer in cluster.peers.peers_for("x")} == {"a", "b"}
    with pytest.raises(ConfigError, match=r"cluster\.peers: 'B' cannot name"):
        await made(settings(process="a", peers=["B"]), files)


async def test_on_a_server_it_makes_itself_a_name_and_is_a_member(server: Store) -> None:
    first = await made(Settings(), server)
    assert first.member is not None
    assert first.peers is not None
    assert first.notices is not None
    assert first.peers.own.process == server.process_name
    assert first.ownership.owns
    again = await made(settings(url="https://a.example"), server)
    assert again.peers is not None
    assert again.peers.own.process == first.peers.own.process
    assert again.peers.own.incarnation > first.peers.own.incarnation
    assert again.peers.own.url == "https://a.example"
    (row,) = server.processes.list().records
    assert (row.incarnation, row.url) == (again.peers.own.incarnation, "https://a.example")


async def test_agents_are_told_where_it_listens_if_they_can_dial_that(server: Store, tmp_path: Path) -> None:
    async def url(**given: object) -> str | None:
        cluster = await made(Settings.model_validate(given), server)
        assert cluster.peers is not None
        return cluster.peers.own.url

    cert, key = make_certificate(tmp_path)  # for localhost, gateway.test and 127.0.0.1
    assert await url(listen="127.0.0.1:8701") == "http://127.0.0.1:8701"
    assert await url(listen="127.0.0.1:0") is None
    assert await url(listen="127.0.0.1:8701", behind_tls_terminator=True) is None
    tls = {"cert": cert, "key": key}
    assert await url(listen="127.0.0.1:8443", tls=tls) == "https://127.0.0.1:8443"
    assert await url(listen="gateway.test:8443", tls=tls) == "https://gateway.test:8443"
    for elsewhere in ("0.0.0.0:8443", "10.0.0.2:8443", "other.test:8443"):
        assert await url(listen=elsewhere, tls=tls) is None
    named = {"process": "a", "peers": ["a=https://a.example"]}
    assert await url(listen="127.0.0.1:8701", cluster=named) == "https://a.example"


async def test_others_ask_it_where_that_is_set_or_else_where_agents_dial_it_or_it_listens(
    server: Store,
) -> None:
    async def address(listen: str = "127.0.0.1:8701", **cluster: object) -> str | None:
        await made(Settings.model_validate({"listen": listen, "cluster": cluster}), server)
        (row,) = server.processes.list().records
        return row.address

    assert await address() == "http://127.0.0.1:8701"
    assert await address(url="wss://a.example/x") == "https://a.example/x"
    assert await address(url="wss://a.example", address="http://10.0.0.2:8701") == "http://10.0.0.2:8701"
    assert await address("10.0.0.2:8701") == "http://10.0.0.2:8701"
    assert await address("[fd00::2]:8701") == "http://[fd00::2]:8701"
    for everywhere in ("0.0.0.0:8701", "[::]:8701", "127.0.0.1:0"):
        assert await address(everywhere) is None
    with pytest.raises(ConfigError, match=r"cluster\.address: 'a:1' is no address of a process"):
        await address(address="a:1")


async def test_it_may_be_given_a_name_and_names_of_others_that_write_no_rows_yet(server: Store) -> None:
    cluster = await made(settings(process="a", peers=["a=https://a", "b=https://b"]), server)
    assert cluster.peers is not None
    assert set(cluster.peers.peers_for("x")) == {cluster.peers.own, GatewayPeer("b", 0, "https://b")}
    assert cluster.processes.count == 1


async def test_agents_that_agree_to_it_are_told_of_changes(server: Store) -> None:
    told: list[object] = []
    cluster = await made(Settings(), server)
    agreed = cluster.with_notices(lambda session, capabilities: told.append(session))
    session = await asyncio.to_thread(_session)
    agreed(session, ["peers"])
    assert told == [session]
    assert cluster.notices is not None
    assert len(cluster.notices) == 1


def _session() -> AgentSession:
    return AgentSession.__new__(AgentSession)
