"""What a worker and its supervisor have of each other."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.runtime.workers.channel import COVER, END, READY, STOP, BadRole, SupervisorLink
from tests.gateway.runtime.workers.played_worker import played, role
from tests.support.processes import until


def test_nobody_else_may_start_a_worker() -> None:
    for said in (b"", b"{}\n", b"hello\n"):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(said)
            ours.shutdown(socket.SHUT_WR)
            with pytest.raises(BadRole):
                SupervisorLink(theirs)


def test_one_whose_supervisor_is_gone_does_not_begin(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(role(str(tmp_path), os.getpid()).encode() + b"\n")
        begin = [*played("serves"), str(theirs.fileno()), "2"]
        with theirs:  # its parent is another process than the supervisor that the role names
            between = f"import subprocess, sys; sys.exit(subprocess.call({begin!r}, close_fds=False))"
            ended = subprocess.run(
                [sys.executable, "-c", between], pass_fds=[theirs.fileno()], capture_output=True, check=False
            )
    assert b"the supervisor of this worker is gone" in ended.stderr


async def test_a_worker_hears_what_it_is_told_and_notices_the_end_of_the_supervisor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.runtime.workers.channel._end_with", lambda supervisor: None)
    ours, theirs = socket.socketpair()
    ours.sendall(role(str(tmp_path), 1).encode() + b"\n")
    link, heard, over = SupervisorLink(theirs), list[bytes](), asyncio.Event()
    link.report(READY)
    assert ours.recv(100) == READY

    def told(what: bytes) -> None:
        heard.append(what)
        if not what:
            over.set()

    link.watch(asyncio.get_running_loop(), told)
    ours.sendall(STOP + END[:2])
    ours.sendall(END[2:])
    ours.close()
    await asyncio.wait_for(over.wait(), 60)
    assert heard == [STOP, END, b""]
    link.close()


async def test_sockets_come_along_with_what_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    monkeypatch.setattr("gateway.runtime.workers.channel._end_with", lambda supervisor: None)
    ours, theirs = socket.socketpair()
    ours.sendall(role(str(tmp_path), 1).encode() + b"\n")
    link, over = SupervisorLink(theirs), asyncio.Event()
    heard: list[tuple[bytes, int]] = []

    def told(what: bytes) -> None:
        taken = link.take_sockets(2) if what.startswith(COVER) else []
        heard.append((what, len(taken)))
        for each in taken:
            assert not each.get_inheritable()
            each.close()
        if not what:
            over.set()

    link.watch(asyncio.get_running_loop(), told)
    with socket.socket() as first, socket.socket() as second:
        ours.sendall(STOP)
        socket.send_fds(ours, [COVER + b"1\n"], [first.fileno(), second.fileno()])
        socket.send_fds(ours, [COVER + b"2\n"], [first.fileno()])
        socket.send_fds(ours, [STOP], [second.fileno()])  # which nobody takes
    ours.close()
    await asyncio.wait_for(over.wait(), 60)
    assert heard == [(STOP, 0), (COVER + b"1\n", 2), (COVER + b"2\n", 1), (STOP, 0), (b"", 0)]
    link.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends it with its parent")
def test_it_does_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    start = (
        "import os, signal, sys\n"
        "from gateway.runtime.workers.worker_process import WorkerProcess\n"
        "from tests.gateway.runtime.workers.played_worker import played, role\n"
        f"worker = WorkerProcess(role({str(tmp_path)!r}, os.getpid()), [], played('serves'))\n"
        "print(worker.pid, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        worker = int(supervisor.stdout.readline())
        until("it serves", (tmp_path / "0").exists)
        supervisor.send_signal(signal.SIGKILL)

        def gone() -> bool:
            stat = Path(f"/proc/{worker}/stat")
            return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

        until("it is gone", gone)
