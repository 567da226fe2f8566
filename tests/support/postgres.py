"""A PostgreSQL server for tests: the one on the standard port, or one of our own, or none.

``postgres_server`` finds the first or starts the second; a test that must stop and start a server asks for
one of its own. Each test works in a schema of its own in a database ``trunkline_tests``.
"""

import atexit
import contextlib
import fcntl
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest

from shared.process.ports import free_port

DATABASE = "trunkline_tests"
STANDARD = "postgresql://postgres@127.0.0.1:5432"
RUN_DIRECTORY = "TRUNKLINE_TEST_RUN"
_START_S = 60.0
_ACCOUNTS = ("postgres", "nobody")
"""The server refuses to run as root; one of these runs it then."""


@dataclass(frozen=True)
class PostgresServer:
    """A server; ``url`` names no database."""

    url: str

    def database_url(self, options: str = "") -> str:
        return f"{self.url}/{DATABASE}{options}"

    @contextlib.contextmanager
    def schema(self) -> Iterator[str]:
        """The address of a new empty schema, which is dropped afterwards."""
        name = f"t_{secrets.token_hex(8)}"
        with psycopg.connect(self.database_url(), autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"')
        try:
            yield self.database_url(f"?options=-csearch_path%3D{name}")
        finally:
            self._drop_schema(name)

    def _drop_schema(self, name: str) -> None:
        """The server may still be at the last statement of a gateway that was killed, and that takes locks in
        another order."""
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                with psycopg.connect(self.database_url(), autocommit=True) as connection:
                    connection.execute(f'DROP SCHEMA "{name}" CASCADE')
            except psycopg.errors.DeadlockDetected:
                if time.monotonic() > deadline_s:
                    raise
            else:
                return

    def make_database(self) -> None:
        """Once a server; of two test processes one does it."""
        with (
            contextlib.suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation),
            psycopg.connect(f"{self.url}/postgres", autocommit=True, connect_timeout=2) as connection,
        ):
            connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0 ENCODING 'UTF8'")


class OwnPostgresServer(PostgresServer):
    """A server that the test may stop and start."""

    def __init__(
        self, binaries: Path, directory: Path, port: int, primary: "OwnPostgresServer | None" = None
    ) -> None:
        """With a ``primary`` it is its standby: a copy that follows it."""
        object.__setattr__(self, "url", f"postgresql://postgres@127.0.0.1:{port}")
        object.__setattr__(self, "_paths", (binaries, directory / "data", port))
        if primary is None:
            _copy_new(binaries, directory / "data")
        else:
            self._run("pg_basebackup", "-d", f"{primary.url}/postgres", "-R", "-c", "fast", "--no-sync")

    @property
    def port(self) -> int:
        return int(self._paths[2])

    def promote(self) -> None:
        """A standby takes the primary's place; return once it takes writes."""
        self._run("pg_ctl", "-w", "-t", str(int(_START_S)), "promote")

    def start(self) -> None:
        """Returns once it takes connections."""
        port = self._paths[2]
        options = f"-p {port} -h 127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self._run("pg_ctl", "-w", "-t", str(int(_START_S)), "-o", options, "-l", "/dev/null", "start")

    def stop(self) -> None:
        """At once, with whoever is connected."""
        self._run("pg_ctl", "-w", "-m", "fast", "stop")

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        return int((self._paths[1] / "postmaster.pid").read_text().splitlines()[0])

    def kill(self) -> None:
        """End all its processes with SIGKILL; return once they are gone. :meth:`start` recovers it."""
        self.pause()
        processes = self._processes()
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, _START_S)
        (self._paths[1] / "postmaster.pid").unlink(missing_ok=True)

    def pause(self) -> None:
        """No process of it does anything until :meth:`go_on`; connections stay."""
        psutil.Process(self.pid).suspend()  # from now on it makes no other
        for process in self._processes()[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def go_on(self) -> None:
        """After :meth:`pause`."""
        for process in reversed(self._processes()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def _processes(self) -> list[psutil.Process]:
        """The first, and one for each connection and task."""
        server = psutil.Process(self.pid)
        return [server, *server.children(recursive=True)]

    def _run(self, program: str, *arguments: str) -> None:
        binaries, data, _ = self._paths
        _as_account(binaries, program, data, *arguments)

    _paths: tuple[Path, Path, int]


def _as_account(binaries: Path, program: str, data: Path, *arguments: str) -> None:
    done = subprocess.run(
        [str(binaries / program), "-D", str(data), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=2 * _START_S,
        cwd="/",
        user=_account(),
        check=False,
    )
    assert done.returncode == 0, f"{program} failed: {done.stderr}"


def _copy_new(binaries: Path, data: Path) -> None:
    """What initdb makes. It takes seconds, so it is run once for all processes of a run of tests: what it
    made is kept beside the temporary files of that run, and copied."""
    kept = _kept_data()
    made = kept.with_suffix(".made")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _as_account(binaries, "initdb", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(data, kept)
            made.touch()
            return
    shutil.copytree(kept, data)
    _give(data)


def _kept_data() -> Path:
    """``TRUNKLINE_TEST_RUN`` names the directory of this run of tests, set by ``tests/conftest.py``; without
    it each process has its own."""
    return Path(os.environ.get(RUN_DIRECTORY) or _own_directory()) / "postgres"


@cache
def _own_directory() -> str:
    directory = tempfile.mkdtemp(prefix="trunkline-postgres-new-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _give(directory: Path) -> None:
    """To the account that the server runs as."""
    account = _account()
    if account is None:
        return
    for path in (directory, *directory.rglob("*")):
        shutil.chown(path, account)


def _account() -> str | None:
    """As whom the server runs; None: as ourselves."""
    if os.geteuid() != 0:
        return None
    for name in _ACCOUNTS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    pytest.skip("there is no account but root's to run PostgreSQL as")


def _binaries() -> Path | None:
    """Of the newest version that is installed."""
    on_path = shutil.which("initdb")
    found = sorted(
        (path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()),
        key=lambda path: float(path.parent.name) if path.parent.name.replace(".", "", 1).isdigit() else 0.0,
    )
    return found[-1] if found else None if on_path is None else Path(on_path).parent


@contextlib.contextmanager
def own_postgres(primary: OwnPostgresServer | None = None) -> Iterator[OwnPostgresServer]:
    """A server of its own, running; with a ``primary`` its standby. Skips the test where PostgreSQL is not
    installed."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt install postgresql)")
    directory = Path(tempfile.mkdtemp(prefix="trunkline-postgres-"))
    account = _account()
    if account is not None:
        shutil.chown(directory, account)
    server = None
    try:
        server = OwnPostgresServer(binaries, directory, free_port(), primary)
        server.start()
        if primary is None:
            server.make_database()
        yield server
    finally:
        if server is not None and (directory / "data" / "postmaster.pid").exists():
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def any_postgres() -> Iterator[PostgresServer]:
    """The server on the standard port if it takes us, else one of our own, else the test is skipped."""
    server = PostgresServer(os.environ.get("TRUNKLINE_TEST_POSTGRES", STANDARD))
    try:
        server.make_database()
    except psycopg.OperationalError:
        with own_postgres() as own:
            yield own
        return
    yield server


def wait_until_away(url: str, timeout_s: float = 10.0) -> None:
    """Return once nobody answers there."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return
    raise AssertionError("the server still answers")
