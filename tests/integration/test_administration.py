"""Two gateways on one store, administered at whichever is asked."""

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.cluster.process_tokens import make_token
from gateway.domain.scopes import AdminRole
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from shared.process.ports import free_port
from tests.integration.conftest import MODEL
from tests.support import forks
from tests.support.processes import Gateway, House, fetch, until

SLOTS = 4


@dataclass(frozen=True, slots=True)
class Pair:
    house: House
    ports: dict[str, int]
    url: str
    gateways: dict[str, Gateway]
    keys: dict[str, str]

    def start(self, name: str) -> None:
        """Where others ask it follows from where it listens."""
        key_file: tuple[str, ...] = ()
        if name != "a":
            key_file = ("--cluster-key", str(self.gateways["a"].state / "cluster.key"))
        own = {
            "TRUNKLINE_GATEWAY_CLUSTER__PROCESS": name,
            "TRUNKLINE_GATEWAY_CLUSTER__URL": f"ws://127.0.0.1:{self.ports[name]}",
        }
        arguments = ("--store", self.url, *key_file)
        self.gateways[name] = self.house.gateway(
            *arguments, name=name, port=self.ports[name], environment=own
        )

    def ask(self, name: str, path: str) -> dict[str, Any]:
        found = fetch(f"{self.gateways[name].url}/admin/{path}", key=self.keys["operator"], timeout_s=20.0)
        return dict(found)

    def processes(self, name: str) -> dict[str, dict[str, Any]]:
        return {each["process"]: each for each in self.ask(name, "processes")["processes"]}

    def ready(self, name: str) -> bool:
        """Whether any gateway would give the agent work, as the one of this name says."""
        return any(model["ready"] for model in self.ask(name, "models")["models"])

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = ("--url", self.gateways[name].url, "--key", self.keys["operator"])
        return forks.trunkline(*arguments, *where)


@pytest.fixture
def pair(house: House, postgres_address: StoreAddress) -> Pair:
    """Two gateways, and an agent with a session with each."""
    made = Pair(house, {"a": free_port(), "b": free_port()}, postgres_address.url, {}, {})
    made.start("a")
    with Store.open(made.gateways["a"].state) as store:
        made.keys["operator"] = store.keys.create("operator", "t", time.time(), role=AdminRole.OPERATOR)
    made.start("b")
    engine = house.engine("--model", MODEL)
    house.agent(made.gateways["a"], engine.url, "--slots", str(SLOTS))
    for name in ("a", "b"):
        until("each knows both", lambda: both_have_it(made, name), 60.0)  # noqa: B023
    until("the model is there", lambda: made.ready("a"), 60.0)
    return made


def both_have_it(pair: Pair, asked: str) -> bool:
    found = pair.processes(asked)
    return set(found) == {"a", "b"} and all(each["up"] and each["agents"] == 1 for each in found.values())


def test_whichever_is_asked_tells_of_both_and_of_the_one_that_hangs(pair: Pair) -> None:
    for name in ("a", "b"):
        (agent,) = pair.ask(name, "agents")["agents"]
        assert (agent["connected"], agent["draining"]) == (True, False)
        until("it tells of all that the agent lends to both", lambda: lent(pair, name))  # noqa: B023
        until("nobody is missing", lambda: "missing" not in pair.ask(name, "queue"))  # noqa: B023

    pair.gateways["b"].child.signal(signal.SIGSTOP)
    try:
        found = pair.ask("a", "queue")
        assert (found["missing"], found["why_missing"]) == (["b"], {"b": "no answer within 2 s"})
        assert pair.processes("a")["b"]["up"] is False
        status = pair.run("a", "status", "--json")
        assert status.returncode == 0, status.stderr
        shown = {each["process"]: each for each in json.loads(status.stdout)["processes"]}
        assert (shown["a"]["up"], shown["b"]["up"]) == (True, False)
        assert shown["a"]["others"]["known_s"] < 30.0, "it reads the rows all the while"
        assert set(shown["a"]["others"]["told_s"]) <= {"b"}

        def heard_no_more() -> bool:
            return "not been heard of" in pair.processes("a")["b"]["why"]

        until("its row is old", heard_no_more)
        assert "away: it has not been heard of for" in pair.run("a", "status").stdout
    finally:
        pair.gateways["b"].child.signal(signal.SIGCONT)
    until("it answers again", lambda: both_have_it(pair, "a"))


def lent(pair: Pair, asked: str) -> bool:
    """The agent divides its slots anew as its second session begins: the sum is whole only after that."""
    (model,) = pair.ask(asked, "models")["models"]
    return (model["ready"], model["slots"]) == (True, SLOTS)


@pytest.mark.cluster
def test_an_agent_is_held_by_both_and_after_both_are_started_anew(pair: Pair) -> None:
    assert pair.run("b", "drain", "agent", "--no-wait").returncode == 0
    until("neither gives it work", lambda: not pair.ready("a"))
    for name in ("a", "b"):
        pair.house.children.stop(pair.gateways[name].child)
        pair.start(name)
    until("the agent is at both", lambda: both_have_it(pair, "a"), 60.0)
    (agent,) = pair.ask("b", "agents")["agents"]
    assert (agent["draining"], pair.ready("a")) == (True, False)
    assert pair.run("a", "drain", "agent", "--undo").returncode == 0
    until("it has work again", lambda: pair.ready("b"))


def test_who_is_no_member_is_told_nothing(pair: Pair) -> None:
    target = "/cluster/b/agents"
    for scheme, token in (
        ("trunkline-process", make_token(b"guessed" * 4, "b", target, time.time())),
        ("trunkline-process", "1~2~3"),
        ("bearer", pair.keys["operator"]),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask_as(pair.gateways["b"], target, f"{scheme} {token}")
        with refused.value as error:
            assert (error.code, json.loads(error.read())["error"]["code"]) == (401, "not_a_process")


def ask_as(gateway: Gateway, target: str, authorization: str) -> object:
    request = urllib.request.Request(f"{gateway.url}{target}", headers={"authorization": authorization})
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read()


@pytest.mark.cluster
def test_each_verifies_its_own_audit_log_and_names_the_others(pair: Pair) -> None:
    def verified(name: str) -> dict[str, Any]:
        done = pair.run(name, "audit", "verify", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    until("the log of one is known to the store", lambda: verified("a")["anchored"], 30.0)
    until("the log of the other is, too", lambda: verified("a")["elsewhere"], 30.0)
    a, b = verified("a"), verified("b")
    assert [each["chain"] for each in a["elsewhere"]] == [b["chain"]]
    assert [each["chain"] for each in b["elsewhere"]] == [a["chain"]]
