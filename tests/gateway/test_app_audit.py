"""The audit log of a whole gateway in this process, also while it cannot be written."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.audit import AuditFiles, AuditUnwritable, trusted_keys, verify
from gateway.audit.reading import read_lines
from gateway.store import Store
from tests.gateway.test_app import running

CHAT = "/v1/chat/completions"
ASK = {"model": "m", "messages": [{"role": "user", "content": "swordfish"}]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


def records(store: Store) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in read_lines(store.state_dir / "audit")]


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
    assert "swordfish" not in "".join(read_lines(store.state_dir / "audit"))


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
