"""What a supervisor has for all workers."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.state_dir import PID_NAME
from gateway.runtime.config import load
from gateway.runtime.listeners import ListenFailed, listen
from gateway.runtime.workers import run as running
from gateway.runtime.workers.role import WorkerRole
from gateway.runtime.workers.run import NotStarted, run_workers
from gateway.runtime.workers.settings import LIMITS_NAME
from gateway.storage.locks import ServerLock, running_gateway

SETTINGS = load({"listen": "127.0.0.1:0", "drain_s": 3}, None, {}).settings


class PlayedSupervisor:
    """Starts every worker once, and then calls ``meanwhile``."""

    began = False
    meanwhile: Callable[[list[WorkerRole]], None] = staticmethod(lambda roles: None)

    def __init__(self, start: Callable[..., Any], names: list[str], drain_s: float, **options: Any) -> None:
        assert drain_s == 3
        self._start, self._names, self._left = start, names, options["left"]
        self._listening = options["listening"]

    def run(self) -> int:
        roles = []
        for index, name in enumerate(self._names):
            role, inherited = self._start(index, self._names, False)
            assert (role.process, role.replaces) == (name, False)
            assert role.listener in inherited
            assert self._listening(index) == [role.listener]
            self.began = True
            roles.append(role)
        type(self).meanwhile(roles)
        self._left(0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(roles[0].listener)
        return 5


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[list[WorkerRole]], None]], None]:
    monkeypatch.setattr(running, "Supervisor", PlayedSupervisor)
    monkeypatch.setattr(running, "WorkerProcess", lambda role, inherited, serve: (role, inherited))

    def set_it(act: Callable[[list[WorkerRole]], None]) -> None:
        monkeypatch.setattr(PlayedSupervisor, "meanwhile", staticmethod(act))

    return set_it


def test_the_state_is_locked_and_each_worker_has_a_socket(tmp_path: Path, meanwhile: Any) -> None:
    state = tmp_path / "new" / "state"
    seen: list[WorkerRole] = []

    def look(roles: list[WorkerRole]) -> None:
        seen.extend(roles)
        holder = running_gateway(state)
        assert holder is not None
        assert holder.pid == os.getpid()
        assert (state.stat().st_mode & 0o777, (state / PID_NAME).stat().st_mode & 0o777) == (0o700, 0o600)
        addresses = set()
        for role in roles:
            with socket.socket(fileno=os.dup(role.listener)) as listener:
                addresses.add(listener.getsockname())
        assert len(addresses) == 1

    meanwhile(look)
    assert run_workers(SETTINGS, state, 3, {"drain_s": 3}, tmp_path / "c.toml") == 5
    assert [role.announces for role in seen] == [True, False, False]
    assert [role.owner for role in seen] == [True, False, False]
    assert {(role.count, role.supervisor, role.config) for role in seen} == {
        (3, os.getpid(), str(tmp_path / "c.toml"))
    }
    assert running_gateway(state) is None


@pytest.mark.parametrize("whole", [True, False])
def test_workers_are_forks_until_they_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    serves: list[object] = []

    class Rolling:
        began = False

        def __init__(self, start: Callable[..., object], names: list[str], *_: object, **__: object) -> None:
            self._start, self._names = start, names

        def run(self) -> int:
            for replaces in (False, False, True, False):
                self._start(0, self._names, replaces)
            return 0

    monkeypatch.setattr(running, "Supervisor", Rolling)
    monkeypatch.setattr(running, "WorkerProcess", lambda role, inherited, serve: serves.append(serve))
    monkeypatch.setattr(running, "can_fork", lambda: whole)
    run_workers(SETTINGS, tmp_path, 2, {}, None, lambda: len)
    assert serves == [len if whole else None] * 2 + [None] * 2


def test_workers_keep_a_name_of_their_own_where_the_store_is_on_a_server(
    tmp_path: Path, meanwhile: Any
) -> None:
    names: list[list[str]] = []
    meanwhile(lambda roles: names.append([role.process for role in roles]))
    store = {"url": "postgresql://postgres@127.0.0.1:1/none"}
    for state, cluster in (("a", {}), ("b", {}), ("a", {}), ("c", {"process": "g"})):
        flags = {"listen": "127.0.0.1:0", "drain_s": 3, "store": store, "cluster": cluster}
        run_workers(load(flags, None, {}).settings, tmp_path / state, 2, {}, None)
    first, second, again, given = names
    assert first == again
    assert not set(first) & set(second)
    assert first == [f"{(tmp_path / 'a' / 'process.txt').read_text().strip()}-{index}" for index in (0, 1)]
    assert given == ["g-0", "g-1"]


def test_a_name_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "process.txt").write_text("NO NAME")
    settings = load({"listen": "127.0.0.1:0", "store": {"url": "postgresql://h/d"}}, None, {}).settings
    with pytest.raises(NotStarted, match="holds no name of a process"):
        run_workers(settings, tmp_path, 2, {}, None)


def test_limits_kept_by_an_earlier_run_are_forgotten(tmp_path: Path, meanwhile: Any) -> None:
    limits = tmp_path / LIMITS_NAME
    limits.write_text("half of a database")
    limits.chmod(0o644)
    run_workers(SETTINGS, tmp_path, 2, {}, None)
    assert limits.stat().st_size == 0
    assert limits.stat().st_mode & 0o777 == 0o600


def test_another_gateway_on_the_state_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = ServerLock(tmp_path)
    monkeypatch.setattr("gateway.storage.locks.ServerLock.__init__.__defaults__", (0.0,))
    with pytest.raises(NotStarted, match=f"process {os.getpid()} on"):
        run_workers(SETTINGS, tmp_path, 2, {}, None)
    lock.close()


def test_a_state_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotStarted, match="cannot make the state directory"):
        run_workers(SETTINGS, tmp_path / "file" / "state", 2, {}, None)


def test_an_address_that_is_taken_is_named_and_the_state_is_free_again(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as other:
        host, port = other.getsockname()
        settings = load({"listen": f"{host}:{port}"}, None, {}).settings
        with pytest.raises(ListenFailed, match="something listens there already"):
            run_workers(settings, tmp_path, 2, {}, None)
    assert running_gateway(tmp_path) is None
