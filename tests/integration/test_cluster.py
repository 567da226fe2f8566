"""The command lines that scripts outside the project rely on: two gateways with one store are one cluster.

What is written here is to go on working as it stands; see ``docs/cluster.md``.
"""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.store_address import StoreAddress
from gateway.tools.quickstart.processes import Child
from shared.process.ports import free_port
from tests.integration.conftest import MODEL
from tests.support import forks
from tests.support.processes import START_S, Gateway, House, answer_to, fetch, until
from tests.support.redis_server import own_redis_server

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with own_redis_server(tmp_path) as server:
        yield server.url


def trunkline(house: House, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command, by a user who never ran a gateway."""
    environment = {"HOME": str(house.directory / "home"), "PATH": "/usr/bin:/bin"}
    return forks.trunkline(*arguments, environment=environment, directory=Path(__file__).parents[2])


def printed(house: House, *arguments: str) -> str:
    """The last line that a command prints; it must succeed."""
    done = trunkline(house, *arguments)
    assert done.returncode == 0, done.stderr
    return (done.stdout.splitlines() or [""])[-1]


def ended(gateway: Gateway) -> bool:
    return gateway.child.ended(0.0) is not None


class Cluster:
    """Made by the command lines of the documents alone."""

    def __init__(self, house: House, store: str) -> None:
        self.house, self.store = house, store
        self.cluster_key = house.directory / "cluster.key"
        done = trunkline(house, "store", "init", *self.at_store, *self.with_key)
        assert done.returncode == 0, done.stderr
        self.key = printed(house, "key", "create", *self.at_store, "--name", "tests", "--role", "admin")
        self.token = printed(house, "token", "create", *self.at_store)

    @property
    def at_store(self) -> tuple[str, ...]:
        return ("--store", self.store)

    @property
    def with_key(self) -> tuple[str, ...]:
        return ("--cluster-key", str(self.cluster_key))

    def gateway(self, name: str, *arguments: str, port: int = 0) -> Gateway:
        """Started, and not waited for."""
        port, state = port or free_port(), self.house.directory / name
        line = ("--listen", f"127.0.0.1:{port}", "--state", str(state), *self.at_store, *arguments)
        return Gateway(self.house.children.start(name, "gateway", *line), port, state)

    def ready(self, *gateways: Gateway) -> None:
        for each in gateways:
            self.house.children.wait_until(each.serving, "the gateway is ready", START_S)

    def agent(self, gateway: Gateway) -> Child:
        engine = self.house.engine("--model", MODEL)
        return self.house.agent(gateway, engine.url, token=self.token)

    def chat(self, gateway: Gateway) -> str:
        found = fetch(f"{gateway.base_url}/chat/completions", body=CHAT, key=self.key, timeout_s=30.0)
        return str(found["choices"][0]["message"]["content"])

    def offers(self, gateway: Gateway) -> bool:
        """Whether twelve requests in a row, each on a connection of its own, find the model: whichever worker
        gets them."""
        return all(MODEL in gateway.models(self.key) for _ in range(12))

    def processes(self, gateway: Gateway) -> list[dict[str, Any]]:
        text = trunkline(self.house, "status", "--json", "--url", gateway.url, "--key", self.key)
        assert text.returncode == 0, text.stderr
        found: list[dict[str, Any]] = json.loads(text.stdout)["processes"]
        return found


def test_two_gateways_with_one_store_are_one_cluster_and_one_of_them_may_die(
    house: House, postgres_address: StoreAddress, redis_url: str
) -> None:
    cluster = Cluster(house, postgres_address.url)
    assert not (house.directory / "home").exists()
    more = (*cluster.with_key, "--shared", redis_url)
    first, second = cluster.gateway("one", *more), cluster.gateway("two", *more)
    cluster.ready(first, second)
    cluster.agent(first)
    for gateway in (first, second):
        house.wait_for_model(gateway, cluster.key, MODEL)
        assert cluster.chat(gateway) == answer_to("hi", 3)

    def all_up(gateway: Gateway) -> bool:
        found = cluster.processes(gateway)
        return len(found) == 2 and all(each["up"] for each in found)

    until("either tells of both processes", lambda: all_up(first) and all_up(second), 30.0)

    first.child.signal(signal.SIGKILL)
    house.children.stop(first.child)
    assert cluster.chat(second) == answer_to("hi", 3)

    again = cluster.gateway("one", *more, port=first.port)
    cluster.ready(again)
    house.wait_for_model(again, cluster.key, MODEL)
    for gateway in (again, second):
        assert cluster.chat(gateway) == answer_to("hi", 3)


def test_a_gateway_of_a_cluster_may_have_workers(house: House, postgres_address: StoreAddress) -> None:
    cluster = Cluster(house, postgres_address.url)
    first = cluster.gateway("one", *cluster.with_key, "--workers", "2")
    second = cluster.gateway("two", *cluster.with_key)
    cluster.ready(first, second)
    cluster.agent(second)
    for gateway in (first, second):
        house.wait_for_model(gateway, cluster.key, MODEL)

    def with_agent() -> int:
        return sum(each.get("agents") == 1 for each in cluster.processes(first))

    until("both workers have the agent", lambda: with_agent() >= 2, 60.0)
    until("both have heard what it offers", lambda: cluster.offers(first), 60.0)
    for gateway in (first, first, first, second):
        assert cluster.chat(gateway) == answer_to("hi", 3)


def test_a_gateway_without_the_cluster_key_says_what_to_do_and_does_not_start(
    house: House, postgres_address: StoreAddress
) -> None:
    cluster = Cluster(house, postgres_address.url)
    for arguments, said in (
        ((), "copy the file from a gateway of this store"),
        (("--cluster-key", str(house.directory / "none.key")), "or name it with --cluster-key"),
    ):
        port = free_port()
        state = house.directory / "other"
        line = ("--listen", f"127.0.0.1:{port}", "--state", str(state), *cluster.at_store, *arguments)
        done = trunkline(house, "gateway", *line)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
        assert not (state / "cluster.key").exists()


def test_of_two_that_start_at_once_on_an_empty_server_one_makes_the_keys(
    house: House, postgres_address: StoreAddress
) -> None:
    """Each has a state directory of its own and nothing else; the other one starts with a copy of the key."""
    ports = (free_port(), free_port())
    states = [house.directory / name for name in ("one", "two")]
    lines = [
        ("--listen", f"127.0.0.1:{port}", "--state", str(state), "--store", postgres_address.url)
        for port, state in zip(ports, states, strict=True)
    ]
    both = [
        Gateway(house.children.start(f"start-{n}", "gateway", *line), ports[n], states[n])
        for n, line in enumerate(lines)
    ]
    until("one of them has ended", lambda: any(ended(each) for each in both), START_S)
    (failed,) = (each for each in both if ended(each))
    (other,) = (each for each in both if not ended(each))
    assert "copy the file from a gateway of this store" in failed.child.log.read_text()
    house.children.stop(failed.child)
    house.children.wait_until(other.serving, "the other one serves", START_S)

    (failed.state / "cluster.key").write_bytes((other.state / "cluster.key").read_bytes())
    (failed.state / "cluster.key").chmod(0o600)
    place = both.index(failed)
    second = Gateway(house.children.start("again", "gateway", *lines[place]), ports[place], states[place])
    house.children.wait_until(second.serving, "it serves with the copy", START_S)
