"""What if: requests that a real gateway has served, replayed with another fleet, over the admin API and by
``trunkline whatif``; and what is exported of them."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from gateway.api.admin.whatif_child import LOCK
from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from shared.process.file_lock import FileLock
from tests.integration.asking import ask_at_once, error_of, logged_answers
from tests.integration.conftest import MODEL, Site
from tests.support.forks import trunkline
from tests.support.processes import until

SECRET = "xyzzy-plugh"
REQUESTS = 16


def whatif(site: Site, key: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "TRUNKLINE_KEY": key, "TRUNKLINE_URL": site.gateway.url}
    return trunkline("whatif", *arguments, environment=environment)


async def test_what_was_served_is_replayed_with_more_and_exported_without_content(
    new_site: Callable[..., Site], tmp_path: Path
) -> None:
    site = await asyncio.to_thread(new_site, "--slots", "2")
    with Store.open(site.gateway.state) as store:
        viewer = store.keys.create("looks", "operators", time.time(), role=AdminRole.VIEWER)
    headers = {"authorization": f"Bearer {viewer}"}
    async with aiohttp.ClientSession(site.gateway.url, headers=headers) as client:

        async def answered(body: dict[str, Any], status: int = 200) -> Any:
            async with client.post("/admin/whatif", json=body) as response:
                assert response.status == status, await response.text()
                return await response.json() if status == 200 else await error_of(response)

        assert (await answered({}, 404))["code"] == "nothing_to_replay"
        # for two slots: most of them wait, and much longer than a busy machine makes them
        await ask_at_once(site, REQUESTS, SECRET, tokens_per_s=20.0)
        await asyncio.to_thread(
            until, "the audit log has them", lambda: logged_answers(site.gateway) == REQUESTS
        )

        found = await answered({"add": [{"count": 2}]})
        assert SECRET not in json.dumps(found)
        assert (found["requests"], found["left_out"]) == (REQUESTS, [])
        measured, before, after = (found["total"][name] for name in ("measured", "before", "after"))
        assert measured["answered"] == before["answered"] == after["answered"] == REQUESTS
        assert measured["queued_s"]["p90"] > 0.5
        assert 0.5 < before["queued_s"]["p90"] / measured["queued_s"]["p90"] < 2
        assert after["queued_s"]["p90"] < 0.7 * before["queued_s"]["p90"]
        assert (before["deployments"], after["deployments"], after["slots"]) == (1, 3, 6)

        problem = await answered({"add": [{"model": "no-such", "count": 1}]}, 400)
        assert (problem["code"], problem["param"]) == ("invalid_value", "add")
        assert (await answered({"scale": 0}, 400))["param"] == "scale"
        held = FileLock(site.gateway.state / LOCK)
        assert held.try_take(exclusive=True)
        assert (await answered({}, 409))["code"] == "whatif_runs"
        held.close()
        async with client.get("/admin/whatif") as response:
            about = await response.json()
        assert [each["model"] for each in about["models"]] == [MODEL]

    told = await asyncio.to_thread(whatif, site, viewer, "--add", "2*same", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["changes"] == found["changes"]
    facts = tmp_path / "facts.jsonl"
    exported = await asyncio.to_thread(whatif, site, viewer, "--export", str(facts))
    assert exported.returncode == 0, exported.stderr
    lines = facts.read_text().splitlines()
    assert len(lines) == 1 + REQUESTS
    assert SECRET not in facts.read_text()
    assert {json.loads(line)["tenant"] for line in lines[1:]} == {"t1"}
    replayed = await asyncio.to_thread(whatif, site, "", "--facts", str(facts), "--slots", f"{MODEL}=8")
    assert replayed.returncode == 0, replayed.stderr
    assert f"8 slots on each deployment of {MODEL}" in replayed.stdout
