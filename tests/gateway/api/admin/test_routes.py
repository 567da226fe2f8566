"""The admin API over raw ASGI: who may do what, and that it is done."""

import asyncio
import contextlib
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest
import structlog

from gateway.api.admin import store as admin_store
from gateway.api.admin.bodies import QUERIES
from gateway.api.admin.fleet import FleetAdmin
from gateway.api.admin.resources.table import OPERATIONS
from gateway.api.admin.routes import admin_pages
from gateway.api.admin.store import StoreAdmin
from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.middleware import RequestMiddleware, edge
from gateway.api.routes import build_router
from gateway.api.server.cors import Cors
from gateway.auth.keys import KeyRing
from gateway.domain.errors import RequestError
from gateway.domain.scopes import AdminRole, limited
from gateway.domain.state_dir import DATABASE_NAME
from gateway.observability.audit import append_pending_acts
from gateway.pipeline.pipeline import Pipeline
from gateway.runtime.lifecycle import Lifecycle
from gateway.storage import Account, Amount, Enrolment, KeyRecord, KeyStore, Store
from gateway.storage.errors import StateBusy, StateCorrupt, StateError, StateMissing, StateUnwritable
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import AgentState, AgentStatus, DeploymentStatus
from tests.gateway.api.support import JSON_TYPE, MIB, Call, FakeCatalog, FakeDispatcher, FakeMetrics
from tests.gateway.fleet.fleet import Fleet, deployment
from tests.gateway.storage.fillers import full_database

NOW_S = 1000.0
NEW_KEY = {"name": "ci", "models": ["llama-*"], "tiers": ["batch"], "role": "viewer", "life_s": 60, "rpm": 5}


class House:
    """A store, a fleet under a manual clock, and the surface over them."""

    def __init__(self, directory: Path) -> None:
        self.store = Store.open(directory)
        self.fleet = Fleet()
        self.depths = {"m": 3, "n": 1}
        self.ring = KeyRing(self.store, lambda: NOW_S)
        self.noted: list[tuple[str, str, str]] = []
        self.failures: list[RequestError | None] = []
        clock, index = self.fleet.registry.clock, self.fleet.registry.index
        self.stored = StoreAdmin(self.store, lambda: index.models, lambda: NOW_S)
        fleet = FleetAdmin(
            self.fleet.registry,
            self.store.agents,
            lambda: self.depths,
            clock,
            note=lambda kind, who, *, agent: self.noted.append((kind, who, agent)),
        )
        admin = admin_pages(self.ring, [*fleet.methods(), *self.stored.methods()])
        settings, lifecycle = HttpSettings(), Lifecycle()
        pipeline = Pipeline(self.ring, FakeDispatcher().run)
        router = build_router(pipeline, self.ring, FakeCatalog(), FakeMetrics(), lifecycle, settings, admin)
        self.router = router
        self.app = RequestMiddleware(router, settings, BufferBudget(MIB), lifecycle, lambda *facts: None)
        lifecycle.serve()
        self.keys = {role: self.store.keys.create(f"its-{role}", "ops", 1.0, role=role) for role in AdminRole}
        self.keys[None] = self.store.keys.create("its-none", "ops", 1.0)  # type: ignore[index]

    async def ask(
        self,
        method: str,
        path: str,
        role: AdminRole | None = AdminRole.ADMIN,
        body: object = None,
        **more: Any,
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Status, the JSON in the answer, and its headers."""
        data = more.get("raw", b"" if body is None else orjson.dumps(body))
        headers = more.get("headers", (JSON_TYPE,))
        bearer = (b"authorization", b"Bearer " + self.keys[role].encode())  # type: ignore[index]
        call = Call(self.app, method, path, (*headers, bearer), query=more.get("query", b""))
        call.body(data)
        await call.done(more.get("within_s", 5))
        return call.status, orjson.loads(call.content), call.headers


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "state")
    yield made
    made.store.close()


async def test_the_event_loops_thread_does_not_read_keys_that_have_changed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[int] = []
    read = KeyStore.changed_since

    def watched(store: KeyStore, revision: int) -> tuple[int, Sequence[KeyRecord]]:
        readers.append(threading.get_ident())
        return read(store, revision)

    monkeypatch.setattr(KeyStore, "changed_since", watched)
    assert (await house.ask("GET", "/admin/queue"))[0] == 200
    assert readers
    assert threading.get_ident() not in readers


def enrol(store: Store, name: str) -> None:
    token, _ = store.tokens.create(3600, 1, ["llama-*"], {"region": "eu"}, 1.0)
    store.agents.enrol(Enrolment(token.id_text, name, name.encode().ljust(32), name, 4e9), 2.0)


RIGHTS = [
    ("GET", "/admin/agents", AdminRole.VIEWER),
    ("GET", "/admin/models", AdminRole.VIEWER),
    ("GET", "/admin/queue", AdminRole.VIEWER),
    ("POST", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR),
    ("DELETE", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR),
    ("DELETE", "/admin/agents/gpu-1", AdminRole.ADMIN),
    ("GET", "/admin/keys", AdminRole.ADMIN),
    ("POST", "/admin/keys", AdminRole.ADMIN),
    ("POST", "/admin/keys/its-none/rotate", AdminRole.ADMIN),
    ("GET", "/admin/aliases", AdminRole.VIEWER),
    ("PUT", "/admin/aliases/org/llama", AdminRole.OPERATOR),
    ("PUT", "/admin/aliases/org/llama", AdminRole.OPERATOR),
    ("POST", "/admin/aliases/org/llama/rollback", AdminRole.OPERATOR),
    ("DELETE", "/admin/aliases/org/llama", AdminRole.OPERATOR),
    ("GET", "/admin/tokens", AdminRole.ADMIN),
    ("POST", "/admin/tokens", AdminRole.ADMIN),
    ("PATCH", "/admin/keys/its-none", AdminRole.ADMIN),
    ("GET", "/admin/enrolments", AdminRole.VIEWER),
    ("PATCH", "/admin/agents/gpu-2", AdminRole.ADMIN),
    ("PUT", "/admin/aliases/org/llama", AdminRole.OPERATOR),
    ("GET", "/admin/aliases/org/llama", AdminRole.VIEWER),
    ("PATCH", "/admin/aliases/org/llama", AdminRole.OPERATOR),
    ("GET", "/admin/tenants", AdminRole.ADMIN),
    ("PATCH", "/admin/tenants/acme", AdminRole.ADMIN),
    ("DELETE", "/admin/tenants/acme", AdminRole.ADMIN),
    ("GET", "/admin/prices", AdminRole.ADMIN),
    ("PUT", "/admin/prices/org/llama", AdminRole.ADMIN),
    ("DELETE", "/admin/prices/org/llama", AdminRole.ADMIN),
    ("GET", "/admin/usage", AdminRole.ADMIN),
    ("GET", "/admin/identity", AdminRole.VIEWER),
    ("GET", "/admin/audit/verify", AdminRole.VIEWER),
    ("GET", "/admin/audit", AdminRole.ADMIN),
    ("DELETE", "/admin/keys/its-none", AdminRole.ADMIN),
]


BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/admin/keys"): NEW_KEY,
    ("PUT", "/admin/aliases/org/llama"): {"targets": []},
    ("PATCH", "/admin/keys/its-none"): {"rpm": 5},
    ("PATCH", "/admin/agents/gpu-2"): {"models": ["m"]},
    ("PATCH", "/admin/aliases/org/llama"): {"fallback": ["m"]},
    ("PATCH", "/admin/tenants/acme"): {"tpm": 100},
    ("PUT", "/admin/prices/org/llama"): {"input": 1.5},
}

BAD_KEYS: list[tuple[object, int, str]] = [
    ({}, 400, "invalid_value"),
    ({"name": "a/b"}, 400, "invalid_value"),
    ({"name": 5}, 400, "invalid_value"),
    ({"name": "its-none"}, 409, "name_in_use"),
    ({"name": "x", "role": "root"}, 400, "invalid_value"),
    ({"name": "x", "tiers": ["urgent"]}, 400, "invalid_value"),
    ({"name": "x", "models": "llama"}, 400, "invalid_value"),
    ({"name": "x", "models": ["a"] * 65}, 400, "invalid_value"),
    ({"name": "x", "life_s": -1}, 400, "invalid_value"),
    ({"name": "x", "where": {"region": []}}, 400, "invalid_value"),
    ({"name": "x", "rpm": 0}, 400, "invalid_value"),
    ({"name": "x", "digest": "00"}, 400, "invalid_value"),
    ({"name": "x" * 70_000}, 413, "request_too_large"),
    ([], 400, "invalid_json"),
]


async def test_each_act_takes_its_role_and_less_will_not_do(house: House) -> None:
    append_pending_acts(house.store)
    enrol(house.store, "gpu-1")
    enrol(house.store, "gpu-2")
    house.fleet.connect("gpu-1", deployment("m"))
    for turn, (method, path, needed) in enumerate(RIGHTS):
        body = BODIES.get((method, path))
        if body is not None and "targets" in body:
            body = {"targets": [f"llama@v{turn}"]}
        for role in (None, *(role for role in AdminRole if not role.covers(needed))):
            status, found, _ = await house.ask(method, path, role, body)
            assert (status, found["error"]["code"]) == (403, "role_required")
            assert f"the role '{needed}'" in found["error"]["message"]
        status, found, _ = await house.ask(method, path, needed, body, within_s=60)
        assert status == 200, (method, path, found)


def test_every_operation_of_the_table_is_in_the_list_of_rights() -> None:
    """So that none can be added without its role being tried."""
    for operation in (each for each in OPERATIONS.values() if not each.only_here):
        pattern = re.compile(re.sub(r"{\w+(:path)?}", r"[^/]+(/[^/]+)??", operation.path))
        found = [r for m, path, r in RIGHTS if m == operation.method and pattern.fullmatch(path)]
        assert operation.role in found or operation.name == "revoke_token", operation


async def test_only_who_shows_a_key_is_told_anything(house: House) -> None:
    credentials: list[tuple[tuple[bytes, bytes], ...]] = [
        (),
        ((b"authorization", b"Bearer sk-tl-nope"),),
        ((b"authorization", b"Basic YWRtaW46YWRtaW4="),),
        ((b"cookie", b"key=sk-tl-x"),),
    ]
    for headers in credentials:
        for method, path in (("GET", "/admin/keys"), ("POST", "/admin/keys"), ("PATCH", "/admin/agents")):
            call = Call(house.app, method, path, headers)
            call.body(b"{}")
            await call.done()
            assert call.status == 401
            assert "allow" not in call.headers


async def test_no_web_page_is_let_in_whatever_origins_are_allowed_elsewhere(house: House) -> None:
    settings = HttpSettings(cors=Cors(["https://app.example"]))
    lifecycle = Lifecycle()
    app = RequestMiddleware(
        edge(house.router, settings), settings, BufferBudget(MIB), lifecycle, lambda *facts: None
    )
    asked = ((b"origin", b"https://app.example"), (b"access-control-request-method", b"POST"))
    for path, status in (("/v1/models", 204), ("/admin/keys", 401)):
        call = Call(app, "OPTIONS", path, asked)
        call.body(b"")
        await call.done()
        assert call.status == status
        assert ("access-control-allow-methods" in call.headers) is (status == 204)


async def test_a_key_is_made_shown_once_and_nothing_of_it_is_listed(house: House) -> None:
    status, made, headers = await house.ask("POST", "/admin/keys", body=NEW_KEY)
    assert (status, headers["cache-control"]) == (200, "no-store")
    principal = house.ring.authenticate(made["key"])
    assert (principal.scopes, principal.role) == (limited(["llama-*"], tiers=["batch"]), AdminRole.VIEWER)
    assert (made["expires_s"], made["rpm"]) == (NOW_S + 60, 5)
    _, listed, _ = await house.ask("GET", "/admin/keys")
    facts = next(each for each in listed["keys"] if each["name"] == "ci")
    text = orjson.dumps(listed).decode()
    assert facts == {name: value for name, value in made.items() if name != "key"}
    assert made["key"] not in text
    assert all(record.digest.hex() not in text for record in house.store.keys.list())


async def test_a_key_is_rotated_and_revoked_from_the_next_request_on(house: House) -> None:
    old = (await house.ask("POST", "/admin/keys", body={"name": "ci"}))[1]["key"]
    new = (await house.ask("POST", "/admin/keys/ci/rotate", body={"overlap_s": 60}))[1]["key"]
    assert house.ring.authenticate(old) == house.ring.authenticate(new)
    assert (await house.ask("DELETE", "/admin/keys/ci"))[1]["revoked"]
    for text in (old, new):
        with pytest.raises(RequestError):
            house.ring.authenticate(text)


async def test_what_cannot_be_a_key_is_refused_and_nothing_is_made(house: House) -> None:
    before = house.store.keys.list()
    for body, status, code in BAD_KEYS:
        got, found, _ = await house.ask("POST", "/admin/keys", body=body)
        assert (got, found["error"]["code"]) == (status, code), body
    assert house.store.keys.list() == before


@pytest.mark.parametrize(
    ("method", "path", "body", "end"),
    [
        ("POST", "/admin/keys", {"name": "x" * 60_000}, "begin with a letter or digit."),
        ("DELETE", "/admin/keys/" + "x" * 6_000, None, "see: trunkline key list."),
        ("POST", f"/admin/agents/{'x' * 6_000}/drain", None, "is connected here."),
    ],
)
async def test_a_refusal_quotes_only_the_beginning_of_a_name_that_is_too_long(
    house: House, method: str, path: str, body: object, end: str
) -> None:
    status, found, _ = await house.ask(method, path, body=body)
    assert status in (400, 404)
    message = found["error"]["message"]
    assert "x" * 100 in message
    assert message.endswith(end)
    assert len(message) < 1000


async def test_bodies_are_json_sent_as_such(house: House) -> None:
    for headers, status in (((), 400), (((b"content-type", b"text/plain"),), 400)):
        got, _, _ = await house.ask("POST", "/admin/keys", body=NEW_KEY, headers=headers)
        assert got == status
    gzip = (JSON_TYPE, (b"content-encoding", b"gzip"))
    assert (await house.ask("POST", "/admin/keys", body=NEW_KEY, headers=gzip))[0] == 415
    assert (await house.ask("POST", "/admin/keys", raw=b"{"))[0] == 400


async def test_what_is_not_there_is_a_404_and_a_wrong_method_a_405(house: House) -> None:
    for method, path in (
        ("DELETE", "/admin/keys/nobody"),
        ("POST", "/admin/keys/nobody/rotate"),
        ("DELETE", "/admin/agents/nobody"),
        ("POST", "/admin/agents/nobody/drain"),
    ):
        status, found, _ = await house.ask(method, path)
        assert (status, found["error"]["code"]) == (404, "not_found")
    status, _, headers = await house.ask("PUT", "/admin/keys", body=NEW_KEY)
    assert (status, headers["allow"]) == (405, "GET, POST")


async def test_agents_are_shown_connected_or_not(house: House) -> None:
    enrol(house.store, "gpu-1")
    enrol(house.store, "gpu-2")
    enrol(house.store, "gone")
    house.store.agents.revoke("gone", "", 3.0)
    house.fleet.connect("gpu-1", deployment("m", 2))
    _, found, _ = await house.ask("GET", "/admin/agents", AdminRole.VIEWER)
    one, two = found["agents"]
    assert (one["name"], one["connected"], one["status"], one["draining"]) == ("gpu-1", True, "READY", False)
    assert (one["may_serve"], one["deployments"][0]["model"]) == (["llama-*"], "m")
    assert (two["name"], two["connected"], two["labels"]) == ("gpu-2", False, {"region": "eu"})


async def test_every_engine_of_an_agent_is_shown_and_why_it_does_not_serve(house: House) -> None:
    agent = house.fleet.connect("gpu-1")
    engines = (
        EngineState("e", DeploymentStatus.LOADED, kind="vllm"),
        EngineState("torch", DeploymentStatus.LOADING, "reading the weights", "", 0.25, 6.0, 24.0),
    )
    agent.endpoint.send_state(
        AgentState(AgentStatus.READY, (deployment("m", id="e/m"),), engines=engines, reason="r")
    )
    house.fleet.settle()
    _, found, _ = await house.ask("GET", "/admin/agents", AdminRole.VIEWER)
    (one,) = found["agents"]
    assert one["reason"] == "r"
    assert [(e["name"], e["status"], e["kind"]) for e in one["engines"]] == [
        ("e", "loaded", "vllm"),
        ("torch", "loading", ""),
    ]
    assert [e["models"] for e in one["engines"]] == [["m"], []]
    torch = one["engines"][1]
    assert (torch["reason"], torch["loading"]) == ("reading the weights", "25 %, 6 s of about 24 s")
    assert (torch["load_progress"], torch["loading_s"], torch["load_s"]) == (0.25, 6.0, 24.0)


async def test_an_engines_kind_is_that_of_its_deployments_where_an_agent_does_not_tell_it(
    house: House,
) -> None:
    """Agents of earlier versions told none of engines of no known kind."""
    agent = house.fleet.connect("gpu-1")
    engines = (EngineState("e", DeploymentStatus.LOADED), EngineState("f", DeploymentStatus.FAILED))
    offered = replace(deployment("m", id="e/m"), kind="generic")
    agent.endpoint.send_state(AgentState(AgentStatus.READY, (offered,), engines=engines))
    house.fleet.settle()
    _, found, _ = await house.ask("GET", "/admin/agents", AdminRole.VIEWER)
    assert [each["kind"] for each in found["agents"][0]["engines"]] == ["generic", ""]


async def test_an_operator_keeps_work_from_an_agent_and_gives_it_back(house: House) -> None:
    house.fleet.connect("gpu-1", deployment("m"))
    _, found, _ = await house.ask("POST", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR)
    assert found == {"agent": "gpu-1", "draining": True, "streams": 0}
    assert not house.fleet.registry.models()[0].ready
    await house.ask("DELETE", "/admin/agents/gpu-1/drain", AdminRole.OPERATOR)
    assert house.fleet.registry.models()[0].ready
    who = {f"key:{key.id}" for key in house.store.keys.list() if key.role is AdminRole.OPERATOR}
    assert [(kind, {by}, agent) for kind, by, agent in house.noted] == [
        ("agent.drain", who, "gpu-1"),
        ("agent.undrain", who, "gpu-1"),
    ]


async def test_a_revoked_agent_is_revoked_in_the_store_with_its_reason(house: House) -> None:
    enrol(house.store, "gpu-1")
    assert (await house.ask("DELETE", "/admin/agents/gpu-1", body={"reason": "x" * 501}))[0] == 400
    assert (await house.ask("DELETE", "/admin/agents/gpu-1", body={"reason": "host sold"}))[0] == 200
    (record,) = house.store.agents.list()
    assert record.revoked_reason == "host sold"
    assert record.revoked_s == NOW_S


async def test_models_and_the_queue_are_shown(house: House) -> None:
    house.fleet.connect("gpu-1", deployment("m", 2))
    _, found, _ = await house.ask("GET", "/admin/models", AdminRole.VIEWER)
    (model,) = found["models"]
    assert (model["id"], model["ready"], model["slots"], model["waiting"]) == ("m", True, 2, 3)
    assert model["deployments"][0]["agent"] == "gpu-1"
    _, queue, _ = await house.ask("GET", "/admin/queue", AdminRole.VIEWER)
    assert queue == {"waiting": 4, "models": {"m": 3, "n": 1}}


async def test_who_did_it_is_noted_with_the_act(house: House) -> None:
    await house.ask("POST", "/admin/keys", body={"name": "ci"})
    key_id = house.store.keys.get("its-admin").id
    (act,) = [each for each in house.store.acts.pending(100) if each.what.get("name") == "ci"]
    assert (act.kind, act.who) == ("key.create", f"key:{key_id}")


async def test_an_alias_is_set_rolled_back_and_removed(house: House) -> None:
    _, made, _ = await house.ask("PUT", "/admin/aliases/org/llama", body={"targets": ["a@v1=95", "a@v2=5"]})
    assert [(each["version"], each["weight"]) for each in made["targets"]] == [("v1", 95.0), ("v2", 5.0)]
    await house.ask("PUT", "/admin/aliases/org/llama", body={"targets": ["a@v2"], "sticky": False})
    _, back, _ = await house.ask("POST", "/admin/aliases/org/llama/rollback")
    assert back == made
    (listed,) = (await house.ask("GET", "/admin/aliases"))[1]["aliases"]
    assert listed.items() >= {name: made[name] for name in made if name != "unserved"}.items()
    await house.ask("DELETE", "/admin/aliases/org/llama")
    assert house.store.aliases.list() == ()
    bad: list[object] = [{"targets": []}, {"targets": ["a=0"]}, {"targets": ["@"]}, {"targets": ["a", 5]}, {}]
    for body in bad:
        assert (await house.ask("PUT", "/admin/aliases/x", body=body))[0] == 400
    assert (await house.ask("DELETE", "/admin/aliases/x"))[0] == 404


async def test_a_join_token_is_made_shown_once_and_revoked_by_its_id(house: House) -> None:
    wish = {"uses": 8, "models": ["llama-*"], "labels": {"region": "eu"}, "life_s": 60}
    _, made, _ = await house.ask("POST", "/admin/tokens", body=wish)
    assert made["token"].startswith("tlj_")
    _, listed, _ = await house.ask("GET", "/admin/tokens")
    (facts,) = listed["tokens"]
    assert (facts["id"], facts["uses_allowed"], facts["labels"]) == (made["id"], 8, {"region": "eu"})
    assert "token" not in facts
    assert (await house.ask("DELETE", f"/admin/tokens/{made['token']}"))[0] == 400
    assert (await house.ask("DELETE", "/admin/tokens/0"))[0] == 404
    assert (await house.ask("DELETE", "/admin/tokens/zzzzzzzz"))[0] == 404
    assert (await house.ask("DELETE", f"/admin/tokens/{made['id']}"))[1]["revoked"]
    assert house.store.tokens.list()[0].revoked_s == NOW_S
    bad: list[object] = [
        {"uses": 0},
        {"life_s": 1e9},
        {"models": []},
        {"labels": {"a b": "c"}},
        {"uses": "8"},
    ]
    for body in bad:
        assert (await house.ask("POST", "/admin/tokens", body=body))[0] == 400


async def test_an_alias_gets_a_shadow_and_fallbacks_and_tells_its_history(house: House) -> None:
    path = "/admin/aliases/org/llama"
    await house.ask("PUT", path, body={"targets": ["a@v1"]})
    await house.ask("PUT", path, body={"targets": ["a@v2"], "switch": True})
    _, found, _ = await house.ask("PATCH", path, body={"mirror": {"target": "a@v3", "share": 0.5}})
    assert found["mirror"] == {"model": "a", "version": "v3", "share": 0.5}
    _, found, _ = await house.ask("PATCH", path, body={"fallback": ["b", "c@v1"]})
    assert ([each["model"] for each in found["fallback"]], found["mirror"]["share"]) == (["b", "c"], 0.5)
    _, found, _ = await house.ask("PATCH", path, body={"mirror": None})
    assert (found["mirror"], len(found["fallback"])) == (None, 2)
    _, told, _ = await house.ask("GET", path)
    assert [each["what"] for each in told["changes"]] == ["set", "switch", "mirror", "fallback", "mirror"]
    first = told["changes"][0]["change"]
    _, back, _ = await house.ask("POST", f"{path}/rollback", body={"to": first})
    assert back["targets"][0]["version"] == "v1"
    bad: list[dict[str, Any]] = [{}, {"mirror": None, "fallback": []}, {"sticky": True}]
    for body in (*bad, {"mirror": {"target": "@", "share": 1}}):
        assert (await house.ask("PATCH", path, body=body))[0] == 400


async def test_targets_that_nobody_serves_are_named(house: House) -> None:
    house.fleet.connect("gpu-1", replace(deployment("a"), version="v1"))
    body = {"targets": ["a@v1=1", "a@v2=1", "b=1", "c=0"]}
    _, found, _ = await house.ask("PUT", "/admin/aliases/llama", body=body)
    assert found["unserved"] == ["a@v2", "b"]
    _, found, _ = await house.ask("PUT", "/admin/aliases/llama", body={"targets": ["a"]})
    assert found["unserved"] == []


async def test_a_keys_limits_are_changed_and_those_not_named_stay(house: House) -> None:
    await house.ask("POST", "/admin/keys", body={"name": "ci", "rpm": 5, "tpm": 100})
    _, found, _ = await house.ask("PATCH", "/admin/keys/ci", body={"rpm": None, "concurrency": 3})
    assert (found["rpm"], found["tpm"], found["concurrency"]) == (None, 100, 3)
    for body in ({}, {"rpm": 0}, {"rpm": "5"}, {"role": "root"}, {"routes": ["chatt"]}, {"tenant": "x"}):
        assert (await house.ask("PATCH", "/admin/keys/ci", body=body))[0] == 400
    _, found, _ = await house.ask("PATCH", "/admin/keys/ci", body={"role": "operator", "routes": ["any"]})
    assert (found["role"], found["routes"], found["tpm"]) == ("operator", ["any"], 100)


async def test_tenants_and_prices_are_set_listed_and_removed(house: House) -> None:
    await house.ask("PATCH", "/admin/tenants/acme", body={"tpm": 100, "money_per_day": 5})
    _, found, _ = await house.ask("PATCH", "/admin/tenants/acme", body={"tpm": None, "weight": 2})
    assert (found["tpm"], found["money_per_day"], found["weight"]) == (None, 5, 2)
    assert (await house.ask("GET", "/admin/tenants"))[1]["tenants"] == [found]
    _, price, _ = await house.ask("PUT", "/admin/prices/*", body={"input": 1, "gpu_second": 0.5})
    assert (price["model"], price["input"], price["output"], price["gpu_second"]) == ("*", 1.0, 0.0, 0.5)
    assert (await house.ask("GET", "/admin/prices"))[1]["prices"] == [price]
    for method, path, body in (
        ("PATCH", "/admin/tenants/acme", {}),
        ("PATCH", "/admin/tenants/acme", {"queue_share": 2}),
        ("PATCH", "/admin/tenants/a%20/b", {"tpm": 1}),
        ("PUT", "/admin/prices/m", {"input": -1}),
        ("PUT", "/admin/prices/m", {"inputs": 1}),
    ):
        assert (await house.ask(method, path, body=body))[0] in (400, 404), (path, body)
    for path in ("/admin/tenants/acme", "/admin/prices/*"):
        assert [(await house.ask("DELETE", path))[0] for _ in range(2)] == [200, 404]


async def test_an_agent_is_renamed_and_told_what_it_may_serve(house: House) -> None:
    enrol(house.store, "gpu-1")
    enrol(house.store, "gpu-2")
    _, found, _ = await house.ask("PATCH", "/admin/agents/gpu-1", body={"models": ["m"], "labels": {}})
    assert (found["models"], found["labels"]) == (["m"], {})
    assert (await house.ask("PATCH", "/admin/agents/gpu-1", body={"name": "gpu-2"}))[0] == 409
    _, found, _ = await house.ask("PATCH", "/admin/agents/gpu-1", body={"name": "berlin-1"})
    assert found["name"] == "berlin-1"
    for body in ({}, {"name": "x", "models": ["m"]}, {"name": "a b"}, {"labels": {"a b": "c"}}):
        assert (await house.ask("PATCH", "/admin/agents/gpu-2", body=body))[0] == 400
    await house.ask("DELETE", "/admin/agents/gpu-2", body={"reason": "sold"})
    _, listed, _ = await house.ask("GET", "/admin/enrolments", AdminRole.VIEWER)
    states = {each["name"]: (each["state"], each["revoked_reason"]) for each in listed["agents"]}
    assert states == {"berlin-1": ("active", ""), "gpu-2": ("revoked", "sold")}


def every_state_error() -> list[StateError]:
    """One of each kind, as the store words them."""
    kinds: list[type[StateError]] = [StateError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {StateMissing, StateUnwritable, StateCorrupt, StateBusy} <= set(kinds)
    return [kind(f"{kind.__name__} of /state/gateway.db: do this") for kind in kinds]


@pytest.mark.parametrize("error", every_state_error(), ids=lambda error: type(error).__name__)
async def test_a_state_that_cannot_be_used_is_a_503_that_says_why(
    house: House, error: StateError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(admin_store, "run_operation", fail)
    monkeypatch.setattr(house.store.agents, "list", fail)
    enrol(house.store, "gpu-1")
    house.fleet.connect("gpu-1", deployment("m"))
    asked = 0
    for method, path, needed in RIGHTS:
        if "drain" in path or path in ("/admin/models", "/admin/queue", "/admin/audit/verify"):
            continue
        body = BODIES.get((method, path))
        if body is not None and "targets" in body:
            body = {"targets": ["llama"]}
        with structlog.testing.capture_logs() as logs:
            status, found, headers = await house.ask(method, path, needed, body)
        assert (status, found["error"]["code"]) == (503, "state_unavailable"), (method, path, found)
        assert found["error"]["message"] == f"The gateway's state cannot be used just now: {error}."
        assert headers["retry-after"] == "5"
        assert [(line["event"], line["error"]) for line in logs] == [("state_failed", str(error))]
        asked += 1
    assert asked > 20


@contextlib.contextmanager
def held_database(store: Store) -> Iterator[None]:
    """While inside, another process writes and does not end."""
    with store._database.write() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 10")
    with contextlib.closing(sqlite3.connect(store.state_dir / DATABASE_NAME)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextlib.contextmanager
def read_only_database(store: Store) -> Iterator[None]:
    """While inside, what this store writes is refused as on a file system that is read only."""
    with store._database.write() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    yield


TROUBLES: list[tuple[Callable[[Store], AbstractContextManager[None]], str]] = [
    (full_database, "is full: make room and try again."),
    (held_database, "look for a stuck trunkline process if it stays so."),
    (read_only_database, "see that its disk is well."),
]


@pytest.mark.parametrize(("trouble", "advice"), TROUBLES)
async def test_what_cannot_be_written_is_not_done_and_is_once_it_can(
    house: House, trouble: Callable[[Store], AbstractContextManager[None]], advice: str
) -> None:
    before = house.store.keys.list()
    body = {"name": "ci", "models": [f"{'m' * 200}-{number}" for number in range(64)]}
    with trouble(house.store):
        status, found, _ = await house.ask("POST", "/admin/keys", body=body)
        assert (status, found["error"]["code"]) == (503, "state_unavailable"), found
        assert found["error"]["message"].endswith(advice)
        assert (await house.ask("GET", "/admin/keys"))[0] == 200
        assert house.store.keys.list() == before


async def test_a_database_that_was_deleted_is_written_on_and_read(house: House) -> None:
    """What the gateway has open goes on, and the backup is made from it."""
    house.store._database.hold_open()
    (house.store.state_dir / DATABASE_NAME).unlink()
    status, made, _ = await house.ask("POST", "/admin/keys", body={"name": "ci"})
    assert status == 200
    assert house.ring.authenticate(made["key"]).key_name == "ci"


async def test_usage_is_read_page_after_page(house: House) -> None:
    amounts = {Account("2026-11-21", f"k{n}", "acme", f"m{n}"): Amount(1, n, 2) for n in range(7)}
    house.store.usage.add(amounts)
    rows, query, pages = [], b"by=model&limit=3", 0
    while True:
        status, found, _ = await house.ask("GET", "/admin/usage", query=query)
        assert (status, found["by"]) == (200, "model")
        rows += found["usage"]
        pages += 1
        if found["next"] is None:
            break
        query = b"by=model&limit=3&after=" + quote(found["next"]).encode()
    assert [(row["model"], row["prompt_tokens"]) for row in rows] == [(f"m{n}", n) for n in range(7)]
    assert pages == 3
    _, found, _ = await house.ask("GET", "/admin/usage", query=b"since=2026-11-22")
    assert found == {"by": "key", "usage": [], "next": None}


@pytest.mark.parametrize(
    ("path", "query", "told"),
    [
        ("/admin/usage", b"by=colour", "by: "),
        ("/admin/usage", b"since=soon", "since: "),
        ("/admin/usage", b"limit=0", "limit: "),
        ("/admin/usage", b"limit=1001", "limit: "),
        ("/admin/usage", b"after=x", "after is what an answer before gave"),
        ("/admin/usage", b"after=%5B%22a%22%5D", "after is what an answer before gave"),
        ("/admin/usage", b"by=key&by=day", "names something twice"),
        ("/admin/usage", b"by=%ff", "cannot be read"),
        ("/admin/usage", b"&".join(b"a%d=1" % n for n in range(17)), "cannot be read"),
        ("/admin/usage", b"colour=red", "colour: "),
        ("/admin/usage", b"=red", '"": '),
        ("/admin/audit/verify", b"expect=1", "expect: "),
        ("/admin/audit", b"after=../../gateway.key@0", "after is what an answer before gave"),
        ("/admin/audit", b"after=2026-11-21.0001.jsonl@-1", "after is what an answer before gave"),
    ],
)
async def test_a_query_that_cannot_be_is_refused(house: House, path: str, query: bytes, told: str) -> None:
    status, found, _ = await house.ask("GET", path, query=query)
    assert (status, found["error"]["type"]) == (400, "invalid_request_error")
    assert told in found["error"]["message"]


async def test_the_gateways_key_is_told_by_its_fingerprint_and_not_changed_from_afar(house: House) -> None:
    status, found, _ = await house.ask("GET", "/admin/identity", AdminRole.VIEWER)
    identity = house.store.gateway_identity
    assert (status, found) == (
        200,
        {
            "keys": [
                {
                    "id": identity.id,
                    "state": "current",
                    "until_s": None,
                    "sha256": identity.fingerprint.hex(),
                }
            ]
        },
    )
    for path in ("/admin/identity", "/admin/identity/rotate"):
        status, _, _ = await house.ask("POST", path, body={"overlap_s": 0})
        assert status in (404, 405)
    assert house.store.gateway_identity.fingerprint == identity.fingerprint


async def test_the_audit_log_is_verified_in_another_process_and_its_end_told(house: House) -> None:
    append_pending_acts(house.store)
    status, found, _ = await house.ask("GET", "/admin/audit/verify", AdminRole.VIEWER, within_s=60)
    assert (status, found["sound"], found["findings"]) == (200, True, [])
    assert found["lines"] == found["last"] > 4
    again = await house.ask(
        "GET", "/admin/audit/verify", query=f"expect={found['end']}".encode(), within_s=60
    )
    assert again[1]["sound"]
    wrong = await house.ask("GET", "/admin/audit/verify", query=f"expect=2:{'0' * 64}".encode(), within_s=60)
    assert (wrong[0], wrong[1]["sound"]) == (200, False)
    assert "line 2 is not the one that was written down" in wrong[1]["findings"][0]


async def test_only_one_verification_runs_and_it_ends_with_its_request(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def forever(*asked: object) -> dict[str, Any]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {}

    monkeypatch.setattr(admin_store, "run_in_child", forever)
    bearer = (b"authorization", b"Bearer " + house.keys[AdminRole.VIEWER].encode())
    first = Call(house.app, "GET", "/admin/audit/verify", (bearer,))
    first.body(b"")
    async with asyncio.timeout(30):
        await begun.wait()
    status, found, headers = await house.ask("GET", "/admin/audit/verify")
    assert (status, found["error"]["code"], headers["retry-after"]) == (503, "overloaded", "5")
    first.disconnect()
    async with asyncio.timeout(30):
        await ended.wait()
        await asyncio.wait([first.task])


async def test_the_audit_log_is_read_page_after_page(house: House) -> None:
    append_pending_acts(house.store)
    lines, query = [], b"kind=key.&limit=2"
    while True:
        status, found, _ = await house.ask("GET", "/admin/audit", query=query)
        assert status == 200
        lines += found["lines"]
        if found["next"] is None:
            break
        assert len(found["lines"]) <= 2
        query = b"kind=key.&limit=2&after=" + found["next"].encode()
    written = "".join(path.read_text() for path in sorted((house.store.state_dir / "audit").glob("*.jsonl")))
    assert lines == [line for line in written.splitlines() if '"kind":"key.' in line]
    assert len(lines) == 4


async def test_what_is_taken_in_a_query_is_described(house: House) -> None:
    _, described, _ = await house.ask("GET", "/openapi.json")
    parameters = described["paths"]["/admin/usage"]["get"]["parameters"]
    assert [each["name"] for each in parameters] == ["by", "since", "after", "limit"]
    for operation in OPERATIONS.values():
        if operation.query:
            fields = QUERIES[operation.name].model_fields
            assert tuple(fields) == operation.query, "what is read is what is described"
