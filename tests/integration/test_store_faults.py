"""A store that is wrong, of a later version, full, read-only or slow, as gateways and commands meet it."""

import base64
import secrets
import time
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store, UsageGrouping
from shared.process.ports import free_port
from tests.integration.conftest import MODEL
from tests.support import forks
from tests.support.postgres import DATABASE, OwnPostgresServer, PostgresServer, own_postgres
from tests.support.processes import Gateway, House, answer_to, fetch, until

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
PASSWORD = "right-password"
WRONG = "wrong-password"
DELAY_S = 0.03
"""What the slow store takes longer, each way."""


@pytest.fixture(scope="module")
def own() -> Iterator[OwnPostgresServer]:
    with own_postgres() as server:
        with psycopg.connect(server.database_url(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE careful LOGIN PASSWORD '{PASSWORD}'")
            found = connection.execute("SHOW hba_file").fetchone()
            assert found is not None
            rules = Path(str(found[0]))
            rules.write_text(f"host all careful 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
            connection.execute("SELECT pg_reload_conf()")
        yield server


@dataclass(frozen=True)
class Ended:
    """What a program said that was to end with an error."""

    code: int
    said: str


def all_end(commands: dict[str, list[str]]) -> dict[str, Ended]:
    """Run them at once, each to its end."""
    with ThreadPoolExecutor(len(commands)) as pool:
        running = {name: pool.submit(forks.trunkline, *each) for name, each in commands.items()}
        done = {name: each.result() for name, each in running.items()}
    return {name: Ended(each.returncode, each.stderr) for name, each in done.items()}


def gateway_at(state: Path, url: str) -> list[str]:
    return ["gateway", "--listen", "127.0.0.1:0", "--state", str(state), "--store", url]


def test_an_address_that_is_wrong_in_any_part_ends_a_gateway_that_says_in_which(
    own: OwnPostgresServer, tmp_path: Path
) -> None:
    at = f"127.0.0.1:{own.port}"
    wrong = {
        "scheme": (f"mysql://postgres@{at}/{DATABASE}", 2, "postgresql://USER@HOST:PORT/DATABASE"),
        "host": (f"postgresql://postgres@nowhere.invalid/{DATABASE}", 1, "resolve host"),
        "port": (f"postgresql://postgres@127.0.0.1:{free_port()}/{DATABASE}", 1, "Connection refused"),
        "no port": (f"postgresql://postgres@127.0.0.1:99999/{DATABASE}", 1, "invalid port number"),
        "database": (f"postgresql://postgres@{at}/absent", 1, '"absent" does not exist'),
        "user": (f"postgresql://absent:{WRONG}@{at}/{DATABASE}", 1, 'role "absent" does not exist'),
        "password": (f"postgresql://careful:{WRONG}@{at}/{DATABASE}", 1, "password authentication failed"),
        "no password": (f"postgresql://careful@{at}/{DATABASE}", 1, "no password supplied"),
        "schema": (f"postgresql://postgres@{at}/{DATABASE}?options=-csearch_path%3Dno", 1, "search_path"),
        "rights": (f"postgresql://careful:{PASSWORD}@{at}/{DATABASE}", 1, "does not permit"),
        "option": (f"postgresql://postgres@{at}/{DATABASE}?no_such=1", 1, "see its options"),
        "tls": (f"postgresql://postgres@{at}/{DATABASE}?sslmode=require", 1, "does not support SSL"),
    }
    ended = all_end({name: gateway_at(tmp_path / name, url) for name, (url, _, _) in wrong.items()})
    for name, (_, code, words) in wrong.items():
        assert ended[name].code == code, (name, ended[name])
        assert words in ended[name].said, (name, ended[name])
        assert len(ended[name].said.splitlines()) == 1, (name, ended[name])
        assert "assword@" not in ended[name].said, (name, ended[name])
        assert WRONG not in ended[name].said, (name, ended[name])
        assert PASSWORD not in ended[name].said, (name, ended[name])
    for name in ("database", "user", "password", "no password"):
        assert "user, password and database" in ended[name].said, "the server runs: that is not the advice"


def test_a_store_of_a_later_version_is_refused_by_all_programs_and_left_as_it_is(
    own: OwnPostgresServer, tmp_path: Path
) -> None:
    with own.schema() as url:
        with Store.open(tmp_path / "state", serve=True, address=StoreAddress(url)) as store:
            store.keys.create("kept", "tests", time.time())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE facts SET value = '1000' WHERE name LIKE 'schema %'")
        at_store = ["--store", url, "--state", str(tmp_path / "state")]
        ended = all_end(
            {
                "gateway": gateway_at(tmp_path / "state", url),
                "workers": [*gateway_at(tmp_path / "other", url), "--workers", "2"],
                "command": ["key", "list", *at_store],
                "check": ["store", "check", *at_store],
                "migrate": ["store", "migrate", *at_store],
            }
        )
        for name, each in ended.items():
            assert each.code == 1, (name, each)
            assert "schema 1000" in each.said, (name, each)
            assert "Traceback" not in each.said, (name, each)
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute("SELECT name, value FROM facts WHERE name LIKE 'schema %'").fetchall()
            assert {value for _, value in found} == {"1000"}
            assert connection.execute("SELECT name FROM api_keys").fetchall() == [("kept",)]


@contextmanager
def full(server: PostgresServer, role: str, schema: str) -> Iterator[None]:
    """Writes fail as they do when the server's disk is full."""
    with psycopg.connect(server.database_url(), autocommit=True) as connection:
        connection.execute(f'SET search_path = "{schema}"')
        connection.execute(
            "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$"
        )
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        names = [str(name) for (name,) in tables.fetchall()]
        for name in names:
            connection.execute(
                f"CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON {name} EXECUTE FUNCTION no_room()"
            )
        yield
        connection.execute("DROP FUNCTION no_room CASCADE")


@contextmanager
def read_only(server: PostgresServer, role: str, schema: str) -> Iterator[None]:
    """New connections may not write, and there are no others."""
    with psycopg.connect(server.database_url(), autocommit=True) as connection:
        for switch in ("on", "off"):
            connection.execute(f'ALTER ROLE "{role}" SET default_transaction_read_only = {switch}')
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,)
            )
            if switch == "on":
                yield


@pytest.fixture
def role(own: OwnPostgresServer) -> Iterator[str]:
    name = f"r_{secrets.token_hex(6)}"
    with psycopg.connect(own.database_url(), autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "{name}" LOGIN')
        connection.execute(f'CREATE SCHEMA "{name}" AUTHORIZATION "{name}"')
    yield name
    with psycopg.connect(own.database_url(), autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{name}" CASCADE')
        connection.execute(f'DROP ROLE "{name}"')


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param(full, "has run out of disk or memory", id="full"),
        pytest.param(read_only, "takes no writes", id="read-only"),
    ],
)
def test_while_nothing_can_be_written_requests_go_on_and_usage_waits(
    own: OwnPostgresServer, house: House, role: str, fault: Callable[..., Any], words: str
) -> None:
    gateway = house.gateway("--store", f"postgresql://{role}@127.0.0.1:{own.port}/{DATABASE}")
    engine, key = house.engine("--model", MODEL), gateway.key("tests")
    token = gateway.token()
    house.agent(gateway, engine.url)
    house.wait_for_model(gateway, key, MODEL)
    with fault(own, role, role):
        for _ in range(4):
            assert chat(gateway, key) == answer_to("hi", 3)
        refused = forks.trunkline("key", "create", "--name", "new", "--state", str(gateway.state))
        assert refused.returncode == 1
        assert words in refused.stderr
        late = house.agent(gateway, engine.url, name="late", token=token)
        until("a join is refused", lambda: "cannot use its database" in late.log.read_text(), 30.0)
        until("it is told that usage waits", lambda: "state_not_written" in gateway.child.log.read_text())
        assert words in gateway.child.log.read_text()
        assert chat(gateway, key) == answer_to("hi", 3)
    until("usage is written", lambda: requests_at(gateway) == 5)
    until("a key can be made", lambda: made(gateway))
    until("the agent has joined", lambda: "joined" in late.log.read_text(), 60.0)
    assert requests_at(gateway) == 5, "each request once"


@pytest.mark.cluster
def test_a_slow_store_slows_no_request_and_revocation_only_by_its_own_delay(
    own: OwnPostgresServer, house: House
) -> None:
    delayed = house.children.start(
        *("proxy", "tests.support.proxy", "--target", f"127.0.0.1:{own.port}"),
        *("--delay-ms", str(1000 * DELAY_S)),
    )
    at = house.listening(delayed)
    with own.schema() as url:
        state = house.directory / "gateway-state"
        with Store.open(state, address=StoreAddress(url, cluster_key=_cluster_key(house.directory))) as store:
            key, revoked = (store.keys.create(name, "tests", time.time()) for name in ("kept", "revoked"))
            keys = ("--cluster-key", str(house.directory / "cluster.key"))
            gateway = house.gateway("--store", url.replace(f"127.0.0.1:{own.port}", at), *keys)
            engine, token = (
                house.engine("--model", MODEL),
                store.tokens.create(600.0, 1, ["*"], {}, time.time())[1],
            )
            house.agent(gateway, engine.url, token=token)
            house.wait_for_model(gateway, key, MODEL)
            took_s = []
            for number in range(16):
                began_s = time.monotonic()
                assert chat(gateway, (key, revoked)[number % 2]) == answer_to("hi", 3)
                took_s.append(time.monotonic() - began_s)
            assert sorted(took_s)[4] < 2 * DELAY_S, "what asks the store takes at least that"
            store.keys.revoke("revoked", time.time())
            committed_s = asked_s = time.monotonic()
            while status(gateway, revoked) == 200:
                asked_s = time.monotonic()
                assert asked_s - committed_s < 10.0, "a second, its delay, and room for a busy machine"
            until("usage is written", lambda: requests(store) == 16)


def _cluster_key(directory: Path) -> Path:
    path = directory / "cluster.key"
    path.write_text(base64.b64encode(secrets.token_bytes(32)).decode())
    path.chmod(0o600)
    return path


def chat(gateway: Gateway, key: str) -> str:
    found = fetch(f"{gateway.base_url}/chat/completions", body=CHAT, key=key, timeout_s=30.0)
    return str(found["choices"][0]["message"]["content"])


def status(gateway: Gateway, key: str) -> int:
    try:
        fetch(f"{gateway.base_url}/models", key=key)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return 200


def requests(store: Store) -> int:
    return sum(total.amount.requests for total in store.usage.totals(UsageGrouping.DAY))


def requests_at(gateway: Gateway) -> int:
    with Store.open(gateway.state) as store:
        return requests(store)


def made(gateway: Gateway) -> str:
    return gateway.key("afterwards")
