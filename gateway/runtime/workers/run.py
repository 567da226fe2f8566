"""What a supervisor has for all workers: listening sockets, the lock on the state, a clean start."""

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.domain.state_dir import PID_NAME
from gateway.runtime.config.settings import Settings
from gateway.runtime.listeners import listen_for_each
from gateway.runtime.workers.forked import can_fork
from gateway.runtime.workers.role import WorkerRole
from gateway.runtime.workers.settings import LIMITS_NAME, process_names
from gateway.runtime.workers.supervisor import Supervisor
from gateway.runtime.workers.worker_process import WorkerProcess
from shared.process.file_lock import FileLock


class NotStarted(Exception):
    """The state directory cannot be had. The message says why."""


def run_workers(
    settings: Settings,
    state_dir: Path,
    count: int,
    flags: Mapping[str, Any],
    config: Path | None,
    prepare: Callable[[], Callable[[list[str]], int]] | None = None,
) -> int:
    """Run ``count`` workers until a signal ends them; the exit status. ``flags`` and ``config`` are what the
    settings were read from, besides the environment. With ``prepare`` workers are forks, where that can be:
    it is called once, and gives what they call (:class:`WorkerProcess`). They are until they are replaced:
    what replaces them may be a later version, which only new processes have, as all that follow are.

    Raises ListenFailed and NotStarted.
    """
    with contextlib.ExitStack() as held:
        lock = held.enter_context(contextlib.closing(_lock(state_dir)))
        listeners = _listen(held, settings.address, count)
        redirects = [] if settings.tls.redirect is None else _listen(held, settings.tls.redirect, count)
        _forget_limits(state_dir)
        forked = prepare() if prepare is not None and can_fork() else None

        def start(index: int, names: list[str], replaces: bool) -> WorkerProcess:
            nonlocal forked
            forked = None if replaces or not can_fork() else forked
            role = WorkerRole(
                index=index,
                count=count,
                process=names[index],
                processes=names,
                replaces=replaces,
                supervisor=os.getpid(),
                listener=listeners[index].fileno(),
                redirect=redirects[index].fileno() if redirects else None,
                state=str(state_dir),
                announces=index == 0 and not supervisor.began,
                flags=flags,
                config=None if config is None else str(config),
            )
            return WorkerProcess(role, [*listening(index), lock.fileno()], serve=forked)

        def left(index: int) -> None:
            """Nobody is to wait there while others still drain."""
            for each in (listeners, redirects):
                if each:
                    each[index].close()

        def listening(index: int) -> list[int]:
            return [each[index].fileno() for each in (listeners, redirects) if each]

        supervisor = Supervisor(
            start,
            process_names(settings, count, _kept_name(settings, state_dir)),
            settings.drain_s,
            silence_s=settings.worker_silence_s,
            start_s=settings.worker_start_s,
            left=left,
            listening=listening,
        )
        return supervisor.run()


def _forget_limits(state_dir: Path) -> None:
    for name in (LIMITS_NAME, f"{LIMITS_NAME}-wal", f"{LIMITS_NAME}-shm"):
        (state_dir / name).unlink(missing_ok=True)  # no host may have left it half written
    (state_dir / LIMITS_NAME).touch(mode=0o600)  # SQLite's own would have the umask's mode


def _listen(held: contextlib.ExitStack, address: tuple[str, int], count: int) -> list[socket.socket]:
    return [held.enter_context(each) for each in listen_for_each(*address, count)]


def _kept_name(settings: Settings, state_dir: Path) -> str | None:
    """What the state directory calls its gateway among those that have the same store; None: no other has it.
    Two hosts, or two directories of one, may have the same host name. Raises NotStarted."""
    if settings.cluster.process is not None or settings.store_address is None:
        return None
    from gateway.storage.errors import StateError
    from gateway.storage.process_name import keep_process_name

    try:
        return keep_process_name(state_dir)
    except StateError as error:
        raise NotStarted(str(error)) from error


def _lock(state_dir: Path) -> FileLock:
    """The lock on the state directory, which workers inherit. What explains why it cannot be had is imported
    only then. Raises NotStarted."""
    try:
        state_dir.parent.mkdir(parents=True, exist_ok=True)
        state_dir.mkdir(mode=0o700, exist_ok=True)
        lock = FileLock(state_dir / PID_NAME)
        if lock.try_take(exclusive=True):
            lock.sign()
            return lock
        lock.close()
    except OSError:
        pass  # it is met again, and explained
    from gateway.storage.errors import StateError
    from gateway.storage.locks import ServerLock
    from gateway.storage.store import make_directory

    try:
        make_directory(state_dir)
        return ServerLock(state_dir)
    except StateError as error:
        raise NotStarted(str(error)) from error
