"""The clock that nobody sets."""

import subprocess
import sys
import time

import pytest

from gateway.domain.running_clock import running_s


def test_all_processes_of_the_host_have_the_same() -> None:
    before = running_s()
    program = "from gateway.domain.running_clock import running_s; print(running_s())"
    there = float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    assert before <= there <= running_s()


def test_a_host_without_a_clock_of_its_running_time_has_the_monotonic_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    before = time.monotonic()
    assert before <= running_s() <= time.monotonic()
