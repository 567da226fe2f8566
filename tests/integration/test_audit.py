"""The audit log beside a running gateway, and after kill -9 in the middle of a thousand writes."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from gateway.observability.audit import append_pending_acts, trusted_keys, verify
from gateway.observability.audit.segments import DIRECTORY
from gateway.storage import Store, UsageGrouping
from tests.gateway.observability.audit import logs
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import MODEL, Site
from tests.integration.killed_writers import Killed, killed_writers
from tests.support.processes import fetch, until

WRITES = 1000
LOST_S = 1.0
"""What a crash may lose at most."""

_WRITERS = """
import os, sys, time
from pathlib import Path
from gateway.observability.audit import RequestFacts, Retention
from gateway.observability.audit.writer import AuditSettings, audit_writer
from gateway.domain.request import Tier
from gateway.storage import Account, Amount, Store

def write(run):
    say("pid", os.getpid(), 0)
    with Store.open(Path(sys.argv[1]), serve=True) as store:
        writer = audit_writer(store, AuditSettings(tick_s=0.1), Retention(segment_bytes=50_000))
        writer.start()
        for n in range(1000):
            name = f"{run}-{n}"
            if n % 40 == 0:
                store.keys.create(name, "t", 1.0)
                say("key", name, time.monotonic())
            if n % 40 == 20:
                store.usage.add({Account("2026-11-21", "k", "t", run, "gpu/0"): Amount(1, 10)})
                say("usage", run, time.monotonic())
            writer.add(RequestFacts(time.time(), name, 200, None, "k", "t", "chat", "m", None, "", "v",
                                    Tier.BATCH, ["gpu/0"], None, 0.0, 0.1, 0.2, None, 1.0, None))
            say("request", name, time.monotonic())
            time.sleep(0.001)
"""


def names(killed: Killed, what: str, before_s: float = float("inf")) -> list[str]:
    """Of what it said to have written by then."""
    return [name for kind, name, at_s in killed.said if kind == what and float(at_s) < before_s]


def records(state: Path) -> list[dict[str, Any]]:
    return logs.records(state / DIRECTORY)


def test_kill_9_at_random_points_of_a_thousand_writes_loses_no_second_and_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    drawn = random.Random(6)
    keys: set[str] = set()
    with killed_writers(_WRITERS, tmp_path) as processes:
        for number, lines in enumerate(
            [drawn.randrange(300), drawn.randrange(60), drawn.randrange(900, WRITES)]
        ):
            run = processes.killed_after(str(number), lines)
            with Store.open(tmp_path, serve=True) as store:
                assert verify(tmp_path / DIRECTORY, trusted_keys(store)).findings == []
                append_pending_acts(store)
                assert verify(tmp_path / DIRECTORY, trusted_keys(store)).findings == []
                there = {key.name for key in store.keys.list()}
                used = {
                    total.name: total.amount.requests for total in store.usage.totals(UsageGrouping.MODEL)
                }
            keys |= set(names(run, "key"))
            written = records(tmp_path)
            noted = Counter(record["name"] for record in written if record["kind"] == "key.create")
            assert keys <= there
            assert noted == Counter(dict.fromkeys(there, 1)), "one line for each, whatever crashed"
            assert used.get(str(number), 0) - len(names(run, "usage")) in (0, 1)
            asked = [record["id"] for record in written if record.get("id", "").startswith(f"{number}-")]
            old = names(run, "request", run.killed_s - LOST_S)
            assert asked[: len(old)] == old
            assert asked == [f"{number}-{n}" for n in range(len(asked))]
            assert lines < 900 or old, "the longest run has requests that are old enough"


def test_a_request_and_an_act_of_another_process_are_in_the_log_of_a_running_gateway(site: Site) -> None:
    state = site.gateway.state
    with Store.open(state) as store:
        store.keys.create("audited", "t", 1.0)
    asked = fetch(f"{site.gateway.url}{CHAT}", body=chat(max_tokens=37), key=site.key)
    assert asked["usage"]["completion_tokens"] == 37

    def of(kind: str, name: str, value: object) -> dict[str, Any] | None:
        found = [each for each in records(state) if each["kind"] == kind and each.get(name) == value]
        return found[-1] if found else None

    until(
        "both are in the log", lambda: of("key.create", "name", "audited") and of("request", "tokens_out", 37)
    )
    act, request = of("key.create", "name", "audited"), of("request", "tokens_out", 37)
    assert act is not None
    assert request is not None
    assert act["who"].startswith("os:")
    assert (request["status"], request["route"], request["model"]) == (200, "chat", MODEL)
    assert len(request["ran"]) == 1
    assert "why_not" not in request
    with Store.open(state) as store:
        report = verify(state / DIRECTORY, trusted_keys(store))
    assert report.findings == []
    assert report.last_seq >= max(act["seq"], request["seq"])
