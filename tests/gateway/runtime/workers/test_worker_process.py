"""A worker as its supervisor sees it."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.runtime.workers.worker_process import WorkerProcess
from tests.gateway.runtime.workers.played_worker import played, role
from tests.support.processes import until


def test_it_says_that_it_serves_and_how_it_ended(tmp_path: Path) -> None:
    worker = WorkerProcess(role(str(tmp_path), os.getpid()), [], played("serves"))
    select.select([worker.channel], [], [], 10)
    assert worker.read()
    assert worker.is_ready
    assert worker.status() is None
    worker.signal(signal.SIGKILL)
    select.select([worker.channel], [], [], 10)
    assert not worker.read()
    until("it has ended", lambda: worker.status() is not None)
    assert worker.status() == -signal.SIGKILL
    worker.signal(signal.SIGTERM)  # which reaches nobody
    worker.close()


def test_it_leads_a_process_group_and_inherits_what_it_is_given_and_nothing_else(tmp_path: Path) -> None:
    listing = "import os, sys; print(os.getpgrp() == os.getpid(), sorted(os.listdir('/proc/self/fd')))"
    out = tmp_path / "out"
    listing = f"import sys; sys.stdout = open({str(out)!r}, 'w'); {listing}"
    with socket.socket() as given, socket.socket() as kept:
        kept.set_inheritable(True)
        worker = WorkerProcess(
            role(str(tmp_path), os.getpid()), [given.fileno()], [sys.executable, "-c", listing]
        )
        until("it has ended", lambda: worker.status() is not None)
        said = out.read_text()
        assert said.startswith("True")
        assert f"'{given.fileno()}'" in said
        assert f"'{kept.fileno()}'" not in said
    worker.close()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_a_fork_is_told_its_role_and_says_that_it_serves(tmp_path: Path) -> None:
    program = """
import os, select, signal, socket, sys
from gateway.runtime.workers.channel import READY, SupervisorLink
from gateway.runtime.workers.worker_process import WorkerProcess
from tests.gateway.runtime.workers.played_worker import role

def serve(numbers):
    channel, stacks = map(int, numbers)
    link = SupervisorLink(socket.socket(fileno=channel))
    os.write(stacks, b"where it is")
    link.report(READY)
    return 5 if link.role.process == given.process else 6

given = role(sys.argv[1], os.getpid())
worker = WorkerProcess(given, [], ["/nowhere"], serve=serve)
while worker.read():
    select.select([worker.channel], [], [], 10)
while worker.status() is None:
    pass
print(worker.is_ready, worker.status(), worker.stacks())
"""
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == "True 5 where it is\n"


def test_what_cannot_be_started_is_an_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No such file"):
        WorkerProcess(role(str(tmp_path), os.getpid()), [], ["/nowhere"])
    assert os.listdir("/proc/self/fd") == before
