"""Gateways go on when their PostgreSQL server is lost and its standby takes its place."""

import threading
import time
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.storage import Store, UsageGrouping
from gateway.storage.errors import StateError
from tests.integration.conftest import MODEL
from tests.support.postgres import DATABASE, OwnPostgresServer, own_postgres
from tests.support.processes import Gateway, House, answer_to, fetch, until

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
DECIDES_S = 1.0
"""So long whoever decides takes to make the standby the primary."""
WRITES_S = 60.0
"""After that writes work again, also where the old primary answers nothing and each try waits for it."""


@dataclass
class Clients:
    """Ask every gateway again and again, each in a thread of its own, until told to stop."""

    gateways: list[Gateway]
    key: str
    answered: int = 0
    slowest_s: float = 0.0
    failed: list[str] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Clients":
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in self.gateways]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, gateway: Gateway) -> None:
        while not self._stopping.wait(0.05):
            began_s = time.monotonic()
            try:
                found = fetch(f"{gateway.base_url}/chat/completions", body=CHAT, key=self.key, timeout_s=30.0)
                assert found["choices"][0]["message"]["content"] == answer_to("hi", 3)
            except urllib.error.HTTPError as error:
                with error:
                    self.failed.append(f"{gateway.port} {error.code}: {error.read().decode()}")
            except (OSError, AssertionError) as error:
                self.failed.append(f"{gateway.port} after {time.monotonic() - began_s:.2f} s: {error!r}")
            self.answered += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)


@pytest.fixture
def servers() -> Iterator[tuple[OwnPostgresServer, OwnPostgresServer]]:
    """A primary and its standby."""
    with own_postgres() as primary, own_postgres(primary) as standby:
        yield primary, standby


@pytest.mark.parametrize("loss", ["killed", pytest.param("frozen", marks=pytest.mark.cluster)])
def test_a_standby_takes_the_place_of_a_lost_primary_and_no_client_notices(
    servers: tuple[OwnPostgresServer, OwnPostgresServer], tmp_path: Path, loss: str
) -> None:
    primary, standby = servers
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://postgres@{hosts}/{DATABASE}?target_session_attrs=read-write"
    with House(tmp_path / "house") as house:
        one = house.gateway("--store", url, name="one")
        wrapping = str(one.state / "cluster.key")
        two = house.gateway("--store", url, "--cluster-key", wrapping, name="two")
        engine = house.engine("--model", MODEL)
        key, token = one.key("tests"), one.token(uses=2)
        for gateway, name in ((one, "a"), (two, "b")):
            house.agent(gateway, engine.url, name=name, token=token)
            house.wait_for_model(gateway, key, MODEL)
        with Clients([one, two], key) as clients:
            until("they are served", lambda: clients.answered > 20)
            _replicate_synchronously(primary)  # else what the standby has not got yet is lost
            until("the standby has what the primary has", lambda: _behind(primary) == 0)
            lost_s = time.monotonic()
            _lose(primary, loss)
            time.sleep(DECIDES_S)
            standby.promote()
            promoted_s = time.monotonic()
            made = _until_made(one)
            writes_s = time.monotonic() - promoted_s
            until("the new key works", lambda: all(_works(each, made) for each in (one, two)), WRITES_S)
            known_s = time.monotonic() - promoted_s
            went_on = clients.answered
            until("they go on", lambda: clients.answered > went_on + 20)
        if loss == "frozen":
            primary.kill()  # whoever fences it
        print(  # noqa: T201 - for docs/cluster.md
            f"\nprimary {loss}, standby promoted {promoted_s - lost_s:.1f} s later; from then a key could be "
            f"made after {writes_s:.1f} s and counted everywhere after {known_s:.1f} s; {clients.answered} "
            f"requests, the slowest {clients.slowest_s:.2f} s"
        )
        assert clients.failed == []
        with Store.open(one.state) as store:
            until("usage is whole", lambda: _requests(store) >= clients.answered)
            time.sleep(1.5)  # what is written twice is written by then
            assert _requests(store) == clients.answered


def _lose(server: OwnPostgresServer, how: str) -> None:
    if how == "killed":
        server.kill()
    else:
        server.pause()


def _replicate_synchronously(primary: OwnPostgresServer) -> None:
    """From now on nothing counts as written that the standby has not got. It is the primary's own setting."""
    with psycopg.connect(primary.database_url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
    until("the standby is waited for", lambda: _sync_state(primary) == "sync")


def _sync_state(primary: OwnPostgresServer) -> str:
    with psycopg.connect(primary.database_url(), autocommit=True) as connection:
        row = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchone()
    return "" if row is None else str(row[0])


def _behind(primary: OwnPostgresServer) -> float:
    """Bytes that the standby has not applied."""
    with psycopg.connect(primary.database_url(), autocommit=True) as connection:
        row = connection.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::float8 FROM pg_stat_replication"
        ).fetchone()
    return 1.0 if row is None else float(row[0])


def _until_made(gateway: Gateway) -> str:
    """A key made by a command, which may have to try again."""
    found: list[str] = []

    def make() -> bool:
        try:
            found.append(gateway.key("after"))
        except StateError:
            return False
        return True

    until("a key is made", make, WRITES_S)
    return found[0]


def _works(gateway: Gateway, key: str) -> bool:
    try:
        fetch(f"{gateway.base_url}/models", key=key, timeout_s=30.0)
    except OSError:
        return False
    return True


def _requests(store: Store) -> int:
    return sum(total.amount.requests for total in store.usage.totals(UsageGrouping.DAY))
