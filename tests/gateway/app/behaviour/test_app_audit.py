"""The audit log of a whole gateway in this process, also while it cannot be written."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.scopes import AdminRole
from gateway.observability.audit import AuditFiles, AuditUnwritable, trusted_keys, verify
from gateway.storage import Store
from tests.gateway.app.test_app import running
from tests.gateway.observability.audit import logs

CHAT = "/v1/chat/completions"
ASK = {"model": "m", "messages": [{"role": "user", "content": "swordfish"}]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


def records(store: Store) -> list[dict[str, Any]]:
    return logs.records(store.state_dir / "audit")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_start_requests_acts_and_stop_are_in_the_log_and_it_verifies(store: Store) -> None:
    key = store.keys.create("k", "acme", 0.0)
    async with running(store) as house:
        answer = await house.client.post(CHAT, json=ASK, headers=bearer(key))
        assert answer.status_code == 404
        await house.client.post(CHAT, json=ASK, headers=bearer("sk-tl-nobody"))
    written = records(store)
    assert {"segment", "key.create", "gateway.start", "request", "gateway.stop"} == {
        r["kind"] for r in written
    }
    (request,) = (record for record in written if record["kind"] == "request")
    assert (request["status"], request["tenant"], request["error"]) == (404, "acme", "model_not_found")
    assert written[-1]["kind"] == "gateway.stop"
    assert verify(store.state_dir / "audit", trusted_keys(store)).findings == []
    assert "swordfish" not in "".join(map(str, written))


async def test_who_did_what_over_http_is_in_the_log_by_his_key_and_so_is_who_was_not_let(
    store: Store,
) -> None:
    keys = {
        role: store.keys.create(role.value, "ops", 0.0, role=role)
        for role in (AdminRole.ADMIN, AdminRole.VIEWER)
    }
    ids = {key.name: key.id for key in store.keys.list()}
    async with running(store) as house:
        for role, status in ((AdminRole.ADMIN, 200), (AdminRole.VIEWER, 403)):
            answer = await house.client.post(
                "/admin/keys", json={"name": f"by-{role}"}, headers=bearer(keys[role])
            )
            assert answer.status_code == status
    written = records(store)
    assert [(each["who"], each["name"]) for each in written if each["kind"] == "key.create"][2:] == [
        (f"key:{ids['admin']}", "by-admin")
    ]
    assert [
        (each["who"], each["route"], each["status"]) for each in written if each["kind"] == "request"
    ] == [
        (f"key:{ids['admin']}", "admin", 200),
        (f"key:{ids['viewer']}", "admin", 403),
    ]


async def test_requests_can_be_left_out(store: Store) -> None:
    key = store.keys.create("k", "acme", 0.0)
    async with running(store, audit={"requests": False}) as house:
        await house.client.post(CHAT, json=ASK, headers=bearer(key))
    assert "request" not in {record["kind"] for record in records(store)}


@pytest.mark.parametrize(("required", "status"), [(True, 503), (False, 404)])
async def test_while_the_log_cannot_be_written_nobody_is_served_where_it_is_required(
    store: Store, monkeypatch: pytest.MonkeyPatch, required: bool, status: int
) -> None:
    def full(*_: object) -> None:
        raise AuditUnwritable("the disk is full")

    key = store.keys.create("k", "acme", 0.0)
    async with running(store, audit={"required": required}) as house:
        with monkeypatch.context() as patch:
            patch.setattr(AuditFiles, "held", full)
            house.gateway.audit.note("gateway.test")
            assert not await asyncio.to_thread(house.gateway.audit.write)
            answer = await house.client.post(CHAT, json=ASK, headers=bearer(key))
            assert answer.status_code == status
            if required:
                assert answer.json()["error"]["code"] == "state_unavailable"
                assert "retry-after" in answer.headers
        assert await asyncio.to_thread(house.gateway.audit.write)
        assert (await house.client.post(CHAT, json=ASK, headers=bearer(key))).status_code == 404
        metrics = (await house.client.get("/metrics", headers=bearer(key))).text
        assert "trunkline_audit_blocked 0.0" in metrics
    assert [record["status"] for record in records(store) if record["kind"] == "request"] == [status, 404]
