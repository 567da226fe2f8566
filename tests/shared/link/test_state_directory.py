"""One agent at most uses a state directory, and its lock goes with its process."""

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.link.state_directory import LOCK_FILE, MembershipError, locked_state_directory
from shared.process.file_lock import FileLock
from tests.support.identities import TOKEN

NOBODY = "http://127.0.0.1:9"
AGENT = (sys.executable, "-m", "agent", "--gateway", NOBODY, "--join", TOKEN.encode(), "--no-find-engines")


def test_a_second_agent_is_told_who_has_the_directory(tmp_path: Path) -> None:
    with (
        locked_state_directory(tmp_path / "state"),
        pytest.raises(
            MembershipError,
            match=rf"\(process {os.getpid()} on {platform.node()}\).*give this one a --state of its own",
        ),
        locked_state_directory(tmp_path / "state"),
    ):
        pass
    with locked_state_directory(tmp_path / "state"):
        assert (tmp_path / "state" / LOCK_FILE).stat().st_mode & 0o777 == 0o600


def test_two_agents_with_a_directory_each_do_not_mind_each_other(tmp_path: Path) -> None:
    with locked_state_directory(tmp_path / "one"), locked_state_directory(tmp_path / "other"):
        pass


def test_a_full_disk_keeps_no_agent_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: FileLock) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileLock, "sign", full)
    with (
        locked_state_directory(tmp_path),
        pytest.raises(MembershipError, match=r"already \(another process\)"),
        locked_state_directory(tmp_path),
    ):
        pass


def test_a_directory_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(MembershipError, match=r"file/state cannot be used"),
        locked_state_directory(tmp_path / "file" / "state"),
    ):
        pass


def test_a_second_process_ends_with_code_1_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    command = (*AGENT, "--state", str(tmp_path))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        assert "agent starts" in first.stderr.readline()
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (second.returncode, second.stdout) == (1, "")
        assert f"(process {first.pid} on {platform.node()})" in second.stderr
        assert "Traceback" not in second.stderr
        assert len(second.stderr.splitlines()) == 1
        first.send_signal(signal.SIGKILL)
    with locked_state_directory(tmp_path):
        pass
