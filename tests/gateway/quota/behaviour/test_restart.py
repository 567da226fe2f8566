"""A whole gateway with a store: what tenants spent is known after a restart; changes count at once."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.domain.quotas import Rates
from gateway.domain.request import Principal, Request, RequestBody
from gateway.storage import Store
from shared.protocol.messages import Usage
from tests.gateway.app.test_app import running

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


async def test_a_budget_that_was_used_up_before_a_restart_stays_so(store: Store) -> None:
    key = {"authorization": f"Bearer {store.keys.create('k', 'acme', 0.0)}"}
    store.limits.tenants.change("acme", {"tokens_per_month": 100, "money_per_day": 5.0}, 1.0)
    store.limits.prices.set("*", 10_000.0, 10_000.0, 3.0, 1.0)
    request = Request(
        "r", Principal("k1", "k", "acme"), "POST", "/x", (), "m", "chat", False, RequestBody(b""), 0.0, "chat"
    )
    async with running(store) as house:
        asked = await house.client.post("/v1/chat/completions", headers=key, json=ASK)
        assert asked.status_code == 404, "within its budget, but nothing serves the model"
        house.gateway._background_writer._ledger.finished(request, Usage(50, 46))
        house.gateway._background_writer._ledger.ran(request, "a/1", 2.0)
    async with running(store) as house:
        asked = await house.client.post("/v1/chat/completions", headers=key, json=ASK)
        error = asked.json()["error"]
        assert (asked.status_code, error["code"]) == (429, "insufficient_quota")
        assert "money per day of tenant 'acme': limit 5, used 6.96" in error["message"] or (
            "tokens per month of tenant 'acme': limit 100, used 96" in error["message"]
        )
        store.limits.tenants.change("acme", {"tokens_per_month": None, "money_per_day": None}, 2.0)
        asked = await house.client.post("/v1/chat/completions", headers=key, json=ASK)
        assert asked.status_code == 404
    month = datetime.now(UTC).date().isoformat()[:8] + "01"
    (tenant, _, tokens, gpu_s, cost), *more = store.usage.spent(month)
    assert (tenant, tokens, gpu_s, more) == ("acme", 96, 2.0, [])
    assert cost == pytest.approx(0.96 + 6.0)


async def test_a_keys_limits_and_a_tenants_weight_count_in_a_running_gateway(store: Store) -> None:
    key = {"authorization": f"Bearer {store.keys.create('k', 'acme', 0.0, rates=Rates(rpm=5))}"}
    async with running(store, queue={"tenant_weights": {"acme": 2.0, "other": 4.0}}) as house:
        room = house.gateway._dispatcher.room
        assert room._weights == {"acme": 2.0, "other": 4.0}
        store.limits.tenants.change("acme", {"weight": 7.0, "queue_share": 0.25}, 1.0)
        asked = await house.client.post("/v1/chat/completions", headers=key, json=ASK)
        assert asked.headers["x-ratelimit-limit-requests"] == "5"
        assert asked.headers["x-ratelimit-remaining-requests"] == "5", "nothing serves the model"
        assert room._weights == {"acme": 7.0, "other": 4.0}
        assert room.shares.most("acme", 100) == 25
        store.keys.change("k", {"rpm": None, "tpm": 4})
        asked = await house.client.post("/v1/chat/completions", headers=key, json=ASK)
        assert asked.status_code == 429
        assert "Request too large" in asked.json()["error"]["message"]
