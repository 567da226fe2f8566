"""Gateways on a PostgreSQL server: several on one store, and what becomes of them when it is away."""

import signal
import subprocess
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store, UsageGrouping
from shared.process.ports import free_port
from tests.integration.conftest import MODEL
from tests.support import forks
from tests.support.postgres import OwnPostgresServer, own_postgres
from tests.support.processes import Gateway, House, answer_to, fetch, until

REVOKED_WITHIN_S = 10.0
"""A second, and room for a busy machine."""
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def own() -> Iterator[OwnPostgresServer]:
    with own_postgres() as server:
        yield server


def chat(gateway: Gateway, key: str) -> str:
    found = fetch(f"{gateway.base_url}/chat/completions", body=CHAT, key=key, timeout_s=30.0)
    return str(found["choices"][0]["message"]["content"])


def status_with(gateway: Gateway, key: str) -> tuple[int, str]:
    """The status of a request with this key, and what is said."""
    try:
        fetch(f"{gateway.base_url}/models", key=key)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    return 200, ""


def requests(store: Store) -> int:
    """How many it has counted. To open it anew for each look would take as long as ten looks."""
    return sum(total.amount.requests for total in store.usage.totals(UsageGrouping.DAY))


def processes(store: Store, *, heard: bool = True) -> dict[str, int]:
    """The incarnations of those that have a row, by their URL. ``heard``: and wrote it lately."""
    report = store.processes.list()
    return {
        each.url or "": each.incarnation
        for each in report.records
        if not heard or report.now - each.heard < 6.0
    }


def trunkline(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forks.trunkline(*arguments)


def printed(*arguments: str) -> str:
    """The last line that the command prints, empty for none; it must succeed."""
    done = trunkline(*arguments)
    assert done.returncode == 0, done.stderr
    return (done.stdout.splitlines() or [""])[-1]


def test_two_gateways_on_one_store_are_one_to_clients_agents_and_operators(
    house: House, postgres_address: StoreAddress
) -> None:
    url = postgres_address.url
    first = house.gateway("--store", url, name="first")
    wrapping = first.state / "cluster.key"
    second = house.gateway("--store", url, "--cluster-key", str(wrapping), name="second")
    engine = house.engine("--model", MODEL)
    at_store = ("--store", url, "--state", str(house.directory / "nowhere"))

    key = printed("key", "create", "--name", "both", *at_store)
    token = printed("token", "create", "--uses", "2", *at_store)
    agents = {}
    for gateway, name in ((first, "a"), (second, "b")):
        agents[name] = house.agent(gateway, engine.url, name=name, token=token)
        house.wait_for_model(gateway, key, MODEL)
        assert chat(gateway, key) == answer_to("hi", 3)
    assert not (house.directory / "nowhere").exists()

    printed("key", "revoke", "both", "--state", str(first.state))
    for gateway in (first, second):
        until("the key is revoked", lambda: status_with(gateway, key)[0] == 401, REVOKED_WITHIN_S)  # noqa: B023

    other = first.key("other")
    printed("agents", "revoke", "b", *at_store)
    sent_away = "sent this agent away for good"
    until("the agent is gone", lambda: sent_away in agents["b"].log.read_text())
    for gateway in (first, second):
        assert chat(gateway, other) == answer_to("hi", 3)
    with Store.open(first.state) as store:
        until("what both served is summed", lambda: requests(store) == 4)


def test_gateways_on_one_store_find_each_other_and_agents_follow(
    house: House, postgres_address: StoreAddress
) -> None:
    """The agent is given one address, and no gateway is told of the other."""
    url = postgres_address.url

    def start(name: str, port: int, *arguments: str) -> Gateway:
        own = {"TRUNKLINE_GATEWAY_CLUSTER__URL": f"http://127.0.0.1:{port}"}
        return house.gateway("--store", url, *arguments, name=name, port=port, environment=own)

    ports = free_port(), free_port()
    urls = {f"http://127.0.0.1:{port}" for port in ports}
    first = start("first", ports[0])
    cluster_key = ("--cluster-key", str(first.state / "cluster.key"))
    engine, key = house.engine("--model", MODEL), first.key("tests")
    agent = house.agent(first, engine.url)
    house.wait_for_model(first, key, MODEL)
    second = start("second", ports[1], *cluster_key)
    house.wait_for_model(second, key, MODEL)
    assert chat(second, key) == answer_to("hi", 3)
    with Store.open(first.state) as store:
        until("both are alive", lambda: set(processes(store)) == urls)
        before = processes(store, heard=False)

        second.child.signal(signal.SIGKILL)
        house.children.stop(second.child)
        until("the killed one is dead", lambda: len(processes(store)) == 1)
        assert set(processes(store, heard=False)) == urls, "its row is left"
        until("the agent is told", lambda: "a process of the gateway is gone" in agent.log.read_text())
        assert chat(first, key) == answer_to("hi", 3)

        second = start("second", ports[1], *cluster_key)
        house.wait_for_model(second, key, MODEL)
        after = processes(store, heard=False)
        assert after[f"http://127.0.0.1:{ports[1]}"] > before[f"http://127.0.0.1:{ports[1]}"]
        house.children.stop(second.child)
        assert set(processes(store, heard=False)) == {f"http://127.0.0.1:{ports[0]}"}, (
            "an orderly stop takes the row away"
        )


def test_a_gateway_goes_on_without_its_server_for_as_long_as_it_may(
    house: House, own: OwnPostgresServer
) -> None:
    url = own.database_url()
    patient = house.gateway("--store", url, name="patient")
    wrapping = str(patient.state / "cluster.key")
    strict = house.gateway(
        *("--store", url, "--cluster-key", wrapping),
        name="strict",
        environment={"TRUNKLINE_GATEWAY_STORE__STALE_S": "0"},
    )
    engine = house.engine("--model", MODEL)
    key, token = patient.key("tests"), patient.token(uses=2)
    house.agent(patient, engine.url, name="here", token=token)
    house.wait_for_model(patient, key, MODEL)
    own.stop()
    try:
        until("the strict one refuses", lambda: status_with(strict, key)[0] == 503)
        assert "cannot check API keys" in status_with(strict, key)[1]
        for _ in range(3):
            assert chat(patient, key) == answer_to("hi", 3)
        assert status_with(patient, "sk-tl-nobody")[0] == 401
        refused = trunkline("key", "create", "--name", "new", "--state", str(patient.state))
        assert refused.returncode == 1
        assert "cannot reach PostgreSQL at 127.0.0.1" in refused.stderr
        late = house.agent(patient, engine.url, name="late", token=token)
        until("a join is refused", lambda: "cannot use its database just now" in late.log.read_text(), 30.0)
    finally:
        own.start()
    until("the strict one is back", lambda: status_with(strict, key)[0] == 200)
    made = printed("key", "create", "--name", "new", "--state", str(patient.state))
    until("a new key works", lambda: status_with(patient, made)[0] == 200, REVOKED_WITHIN_S)
    until("the agent has joined", lambda: "connected" in late.log.read_text(), 60.0)
    assert "late" in trunkline("agents", "--state", str(patient.state)).stdout
    with Store.open(patient.state) as store:
        until("what was served meanwhile is counted", lambda: requests(store) == 3)
