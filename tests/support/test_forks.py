"""A forked process is to its test what a started one is."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from gateway.tools.quickstart.processes import Child
from tests.support.forks import ForkedChild, Forks, ForkServer, SharedForks
from tests.support.leaks import open_descriptors
from tests.support.processes import until

ENGINE = "tests.support.scripted_engine"
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(ENGINE)
    yield server
    server.end()


def engine(server: ForkServer, directory: Path, *arguments: str, **environment: str) -> ForkedChild:
    return ForkedChild("engine", server, arguments, directory / "log", {**os.environ, **environment})


def listening(child: Child) -> None:
    until("it listens", lambda: "listening" in child.log.read_text(), PATIENCE_S)


def runs(pid: int) -> bool:
    """False also for one that nobody has waited for yet."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_it_ends_by_a_signal_with_that_exit_code(
    server: ForkServer, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    child = engine(server, tmp_path)
    listening(child)
    assert child.ended(0.0) is None
    child.signal(number)
    assert child.ended(PATIENCE_S) == code
    child.signal(number)  # to what has ended: nothing


def test_it_ends_with_the_code_and_the_words_of_its_module(server: ForkServer, tmp_path: Path) -> None:
    child = engine(server, tmp_path, "--port", "none")
    assert child.ended(PATIENCE_S) == 2
    assert "argument --port: invalid int value: 'none'" in child.tail()


def test_it_has_the_session_and_the_files_of_one_that_was_started(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = engine(server, tmp_path / "other")
    forked = engine(server, tmp_path)
    started = Child("engine", [ENGINE], tmp_path / "started.log")
    for child in (other, forked, started):
        listening(child)
    assert os.getsid(forked.pid) == os.getpgid(forked.pid) == forked.pid
    assert open_descriptors(forked.pid)[str(forked.log)] == 2
    kinds = [
        {kind: count for kind, count in open_descriptors(child.pid).items() if kind != str(child.log)}
        for child in (forked, started)
    ]
    assert kinds[0] == kinds[1]
    assert all([child.stop() for child in (other, forked, started)])  # noqa: C419 - each is to stop


def test_all_end_with_their_server(tmp_path: Path) -> None:
    server = ForkServer(ENGINE)
    child = engine(server, tmp_path)
    listening(child)
    server.end()
    until("the fork ended", lambda: not runs(child.pid), PATIENCE_S)


def test_one_that_is_shared_serves_each_process_by_itself(tmp_path: Path) -> None:
    shared = SharedForks()
    first, second = (ForkServer(ENGINE, shared) for _ in range(2))
    children = []
    for server, name in ((first, "first"), (second, "second")):
        (tmp_path / name).mkdir()
        children.append(engine(server, tmp_path / name))
        listening(children[-1])
    shared.end()
    first.end()
    until("the fork of the one has ended", lambda: not runs(children[0].pid), PATIENCE_S)
    assert children[1].stop()
    second.end()


def test_what_cannot_be_forked_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forks = Forks()
    environment = dict(os.environ)
    assert forks.server(ENGINE, environment) is None
    forks.used = True
    assert forks.server("json.tool", environment) is None
    assert forks.server(ENGINE, {**environment, "TRUNKLINE_GATEWAY_LISTEN": "x"}) is not None
    assert forks.server(ENGINE, {**environment, "TRUNKLINE_NATIVE": "0"}) is None
    assert forks.server(ENGINE, {**environment, "PYTHONPATH": "/elsewhere"}) is None
    monkeypatch.setenv("TRUNKLINE_TEST_FORKS", "0")
    assert forks.server(ENGINE, environment) is None
    forks.end()
