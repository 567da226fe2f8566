"""The admin API does what commands do on the state."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from gateway.api.admin import store as admin_store
from gateway.domain.errors import RequestError
from gateway.domain.scopes import AdminRole, limited
from gateway.domain.state_dir import DATABASE_NAME
from gateway.observability.audit import append_pending_acts
from gateway.storage import Account, Amount, Store
from gateway.storage.sqlite import database
from tests.gateway.api.admin.house import NEW_KEY, NOW_S, House, enrol, note_failed_delivery
from tests.gateway.api.calls import Call
from tests.gateway.fleet.fleet import deployment
from tests.gateway.storage.fillers import full_database

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


async def test_a_revoked_agent_is_revoked_in_the_store_with_its_reason(house: House) -> None:
    enrol(house.store, "gpu-1")
    assert (await house.ask("DELETE", "/admin/agents/gpu-1", body={"reason": "x" * 501}))[0] == 400
    assert (await house.ask("DELETE", "/admin/agents/gpu-1", body={"reason": "host sold"}))[0] == 200
    (record,) = house.store.agents.list()
    assert record.revoked_reason == "host sold"
    assert record.revoked_s == NOW_S


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


@contextlib.contextmanager
def held_database(store: Store) -> Iterator[None]:
    """While inside, another process writes and does not end, and nobody waits long for it."""
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.closing(sqlite3.connect(store.state_dir / DATABASE_NAME)) as other,
    ):
        patch.setattr(database, "BUSY_TIMEOUT_S", 0.01)
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


async def test_what_a_records_state_does_not_allow_is_refused_in_words(house: House) -> None:
    note_failed_delivery(house.store)
    path = "/admin/webhooks/deliveries/evt_1/redeliver"
    assert (await house.ask("POST", path))[0] == 200
    status, found, _ = await house.ask("POST", path)
    assert (status, found["error"]["code"]) == (409, "wrong_state")
    assert "evt_1 is still being delivered" in found["error"]["message"]


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
