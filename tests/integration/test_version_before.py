"""This version beside the one before, as real processes: each gateway with the other's agents, a state that
is upgraded where it lies, and the way back."""

from typing import Any

import psycopg
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.storage.migrations import MIN_READER
from gateway.storage.schema import SCHEMA_VERSION
from gateway.storage.wrapped_keys import CLUSTER_KEY_NAME
from shared.process.ports import free_port
from tests.integration.conftest import MODEL
from tests.support.earlier import ONE_PROCESS, EarlierVersion, first_of_several, unpacked
from tests.support.processes import Gateway, House, answer_to, fetch, until

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> EarlierVersion:
    return unpacked(ONE_PROCESS, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> EarlierVersion:
    return unpacked(first_of_several(), tmp_path_factory.mktemp("several"))


def chat(gateway: Gateway, key: str) -> str:
    found = fetch(f"{gateway.base_url}/chat/completions", body=CHAT, key=key, timeout_s=30.0)
    return str(found["choices"][0]["message"]["content"])


def test_each_serves_the_others_agents_and_a_state_is_upgraded_where_it_lies(
    house: House, one: EarlierVersion
) -> None:
    """The gateway from before, then this one on its state, then that from before again, which refuses."""
    port, engine = free_port(), house.engine("--model", MODEL)
    before = house.gateway(port=port, environment=one.environment)
    at_state = ("--state", str(before.state))
    key = one.printed("key", "create", "--name", "kept", *at_state)
    token = one.printed("token", "create", "--uses", "2", *at_state)
    new_agent = house.agent(before, engine.url, name="new", token=token)
    house.wait_for_model(before, key, MODEL)
    assert chat(before, key) == answer_to("hi", 3), "an agent of now at a gateway from before"
    house.children.stop(before.child)

    now = house.gateway(port=port)
    house.wait_for_model(now, key, MODEL)
    assert chat(now, key) == answer_to("hi", 3), "what the one before had stored counts"
    house.children.stop(new_agent)
    until("its model is gone", lambda: now.models(key) == [])
    house.agent(now, engine.url, name="old", token=token, environment=one.environment)
    house.wait_for_model(now, key, MODEL)
    assert chat(now, key) == answer_to("hi", 3), "an agent from before at a gateway of now"
    address = f"{now.url.replace('http', 'ws', 1)}/engines/{MODEL}/ws"
    with pytest.raises(InvalidStatus) as refused:
        connect(address, additional_headers={"authorization": f"Bearer {key}"}, proxy=None)
    assert refused.value.response.status_code == 404, "such an agent is never asked for a WebSocket"
    house.children.stop(now.child)

    back = one.run("gateway", "--listen", "127.0.0.1:0", *at_state)
    assert back.returncode == 1
    assert "was written by a later version of Trunkline" in back.stderr
    assert f"schema {SCHEMA_VERSION}" in back.stderr
    assert len(back.stderr.splitlines()) == 1
    with Store.open(now.state) as store:
        assert [each.name for each in store.agents.list()] == ["new", "old"]


def test_gateways_of_now_serve_with_an_agent_from_before_several(
    house: House, one: EarlierVersion, postgres_address: StoreAddress
) -> None:
    """It has a session with one of them, and all its slots are for that one."""
    first = house.gateway("--store", postgres_address.url, name="first")
    key_file = ("--cluster-key", str(first.state / CLUSTER_KEY_NAME))
    second = house.gateway("--store", postgres_address.url, *key_file, name="second")
    engine, key = house.engine("--model", MODEL), first.key("tests")
    house.agent(first, engine.url, "--slots", "2", token=first.token(), environment=one.environment)
    house.wait_for_model(first, key, MODEL)
    assert chat(first, key) == answer_to("hi", 3)
    assert second.models(key) == [], "it knows of no other process"
    with Store.open(first.state) as store:
        assert len(store.processes.list().records) == 2


def test_the_version_before_goes_on_with_a_store_that_this_one_has_used_if_it_may(
    house: House, several: EarlierVersion, postgres_address: StoreAddress
) -> None:
    """There and back on one server: in turn, and beside each other."""
    url = postgres_address.url
    ports = {name: free_port() for name in ("before", "now")}

    def start(name: str, environment: dict[str, str], *arguments: str) -> Gateway:
        own = {"TRUNKLINE_GATEWAY_CLUSTER__URL": f"http://127.0.0.1:{ports[name]}"}

        everything = environment | own
        return house.gateway("--store", url, *arguments, name=name, port=ports[name], environment=everything)

    before = start("before", several.environment)
    key = several.printed("key", "create", "--name", "kept", "--state", str(before.state))
    now = start("now", {}, "--cluster-key", str(before.state / CLUSTER_KEY_NAME))
    engine = house.engine("--model", MODEL)
    house.agent(before, engine.url, token=now.token())
    for gateway in (before, now):
        house.wait_for_model(gateway, key, MODEL)
        assert chat(gateway, key) == answer_to("hi", 3), "both at once, and an agent with both"
    house.children.stop(before.child)
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT name, value FROM facts WHERE name LIKE 'schema%'").fetchall()
    assert dict(rows) == {"schema version": str(SCHEMA_VERSION), "schema min reader": str(MIN_READER)}
    if several.schema >= MIN_READER:
        again = start("before", several.environment)
        house.wait_for_model(again, key, MODEL)
        assert chat(again, key) == answer_to("hi", 3)
    else:
        arguments = ("--listen", "127.0.0.1:0", "--store", url, "--state", str(before.state))
        refused = several.run("gateway", *arguments)
        assert refused.returncode == 1
        assert "was written by a later version of Trunkline" in refused.stderr
