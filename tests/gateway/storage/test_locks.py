"""One gateway at most runs on a state, and its lock goes with its process."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.domain.state_dir import PID_NAME
from gateway.storage import Store
from gateway.storage.errors import StateInUse
from gateway.storage.locks import ServerLock, running_gateway


def test_a_second_gateway_is_told_who_has_the_state(state_dir: Path) -> None:
    state_dir.mkdir(parents=True)
    first = ServerLock(state_dir, wait_s=0.0)
    with pytest.raises(
        StateInUse, match=rf"\(process {os.getpid()} on {socket.gethostname()}\).*another --state"
    ):
        ServerLock(state_dir, wait_s=0.0)
    assert str(running_gateway(state_dir)) == f"process {os.getpid()} on {socket.gethostname()}"
    first.close()
    assert running_gateway(state_dir) is None
    ServerLock(state_dir, wait_s=0.0).close()


def test_commands_open_the_state_of_a_gateway_that_runs(state_dir: Path) -> None:
    with Store.open(state_dir, serve=True), Store.open(state_dir) as store:
        store.keys.create("k", "t", 1.0)
        assert ((state_dir / PID_NAME).stat().st_mode & 0o777) == 0o600
    assert running_gateway(state_dir) is None


def test_a_state_that_cannot_be_opened_leaves_no_lock(state_dir: Path) -> None:
    state_dir.mkdir(parents=True)
    (state_dir / "gateway.db").write_bytes(b"x" * 20_000)
    for _ in range(2):
        with pytest.raises(Exception, match="damaged"):
            Store.open(state_dir, serve=True)
    assert running_gateway(state_dir) is None


def test_a_killed_gateway_leaves_no_lock(state_dir: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from gateway.storage import Store\n"
        "with Store.open(Path(sys.argv[1]), serve=True):\n    print('open', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(state_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        running = running_gateway(state_dir)
        assert running is not None
        assert running.pid == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait()
    Store.open(state_dir, serve=True).close()


def test_a_lock_behind_a_link_is_nobodys(state_dir: Path, tmp_path: Path) -> None:
    state_dir.mkdir(parents=True)
    other = tmp_path / "other"
    other.write_text("precious")
    (state_dir / PID_NAME).symlink_to(other)
    with pytest.raises(Exception, match="cannot open"):
        ServerLock(state_dir, wait_s=0.0)
    assert other.read_text() == "precious"
