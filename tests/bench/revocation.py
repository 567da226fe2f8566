"""How long after its revocation a key, or an agent, still gets a request through.

Requests are asked one after the other, of each key and of each agent in turn, and it is revoked meanwhile as
``trunkline key revoke`` and ``trunkline agents revoke`` do. Told is when the last request that it was let
through with was asked, in milliseconds after the revocation was written; negative when that was before.
"""

import http.client
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from gateway.storage import Store
from tests.support.processes import Gateway, House

_BEFORE = 20
"""Requests that are let through before it is revoked."""
_PATIENCE_S = 10.0
_HEADER = "x-trunkline-agent"


@dataclass(frozen=True, slots=True)
class Lasting:
    """Milliseconds after each revocation."""

    keys_ms: list[float]
    agents_ms: list[float]

    def __str__(self) -> str:
        kinds = (("key", self.keys_ms), ("agent", self.agents_ms))
        return "\n".join(
            f"a revoked {kind}'s last accepted request: median {statistics.median(each):.1f} ms after, "
            f"latest {max(each):.1f} ms, of {len(each)}"
            for kind, each in kinds
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def run(house: House, keys: int, agents: int) -> Lasting:
    """Revoke so many, one after the other. Raises AssertionError when one is let through for ten seconds."""
    gateway = house.gateway("--log-level", "warning")
    return Lasting(
        [_of_a_key(gateway, f"key-{number}") for number in range(keys)],
        [_of_an_agent(house, gateway, f"agent-{number}") for number in range(agents)],
    )


def _of_a_key(gateway: Gateway, name: str) -> float:
    key = gateway.key(name)

    def ask(connection: http.client.HTTPConnection) -> bool:
        connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200

    return _last_ms(gateway, ask, lambda store: store.keys.revoke(name, time.time()))


def _of_an_agent(house: House, gateway: Gateway, name: str) -> float:
    """It is the only one that serves its model."""
    key = gateway.key(f"client-of-{name}")
    engine = house.engine("--model", name, name=f"engine-of-{name}")
    agent = house.agent(gateway, engine.url, name=name)
    house.wait_for_model(gateway, key, name)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})

    def ask(connection: http.client.HTTPConnection) -> bool:
        connection.request("POST", "/v1/chat/completions", body=body, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200 and answer.headers[_HEADER] == name

    last_ms = _last_ms(gateway, ask, lambda store: store.agents.revoke(name, "measured", time.time()))
    agent.ended(_PATIENCE_S)
    for child in (agent, engine.child):
        house.children.stop(child)
    return last_ms


def _last_ms(
    gateway: Gateway, ask: Callable[[http.client.HTTPConnection], bool], revoke: Callable[[Store], object]
) -> float:
    asked_s: list[float] = []
    enough = threading.Event()

    def keep_asking() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=_PATIENCE_S)
        try:
            for number in itertools.count():
                if number == _BEFORE:
                    enough.set()
                now_s = time.monotonic()
                if not ask(connection):
                    return
                asked_s.append(now_s)
        finally:
            connection.close()
            enough.set()

    asking = threading.Thread(target=keep_asking, daemon=True)
    asking.start()
    enough.wait(_PATIENCE_S)
    with Store.open(gateway.state) as store:
        revoke(store)
        revoked_s = time.monotonic()
    asking.join(_PATIENCE_S)
    assert not asking.is_alive(), f"still let through {_PATIENCE_S:g} s after its revocation"
    assert len(asked_s) >= _BEFORE, f"only {len(asked_s)} requests were let through before"
    return (asked_s[-1] - revoked_s) * 1000
