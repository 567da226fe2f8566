"""A gateway's event loop asks the database nothing while requests are served."""

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from gateway.domain.quotas import Rates
from gateway.domain.scopes import AdminRole
from gateway.storage import Store, UsageGrouping
from gateway.storage.sqlite import database
from tests.integration.test_versions import CHAT, site, until


class Statements:
    """What SQLite is asked, and in which thread, from :meth:`clear` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, str]] = []
        connect = database._connect

        def traced(path: Path) -> sqlite3.Connection:
            connection = connect(path)
            connection.set_trace_callback(lambda sql: self.asked.append((threading.get_ident(), sql)))
            return connection

        monkeypatch.setattr(database, "_connect", traced)

    def of(self, thread: int) -> list[str]:
        return [sql for asked_in, sql in self.asked if asked_in == thread]


async def test_no_statement_runs_on_the_event_loops_thread_while_requests_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements, loop_thread = Statements(monkeypatch), threading.get_ident()
    async with site(tmp_path, "m@v1", "m@v2") as house:
        store = house.store
        statements.asked.clear()

        limited = await asyncio.to_thread(
            store.keys.create, "limited", "acme", time.time(), role=AdminRole.ADMIN, rates=Rates(rpm=20)
        )
        await asyncio.to_thread(store.limits.tenants.change, "acme", {"tokens_per_day": 100_000}, 1.0)
        await asyncio.to_thread(store.limits.prices.set, "m", 1.0, 1.0, 0.0, 1.0)
        await house.alias("set", "chat", "m@v1=1", "m@v2=1")
        headers = {"authorization": f"Bearer {limited}"}
        body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        answers = [await house.client.post(CHAT, json=body, headers=headers) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert answers[-1].headers["x-ratelimit-remaining-requests"] == "16"
        streamed = await house.client.post(CHAT, json=body | {"stream": True}, headers=headers)
        assert streamed.text.endswith("data: [DONE]\n\n")
        made = await house.client.post("/admin/keys", json={"name": "made"}, headers=headers)
        assert made.status_code < 300, made.text
        other = {"authorization": f"Bearer {made.json()['key']}"}
        assert (await house.client.get("/v1/models", headers=other)).status_code == 200
        await asyncio.to_thread(store.keys.revoke, "limited", time.time())
        assert (await house.client.post(CHAT, json=body, headers=headers)).status_code == 401
        looked = len(statements.asked)
        await until(lambda: len(statements.asked) > looked)  # the thread goes on looking

        assert statements.of(loop_thread) == []
        assert any("api_keys" in sql for _, sql in statements.asked)
        assert any(sql.startswith("PRAGMA data_version") for _, sql in statements.asked)
    assert statements.of(loop_thread) == [], "nor while the gateway stops"
    with Store.open(tmp_path / "state") as closed:
        assert sum(total.amount.requests for total in closed.usage.totals(UsageGrouping.TENANT)) == 5
