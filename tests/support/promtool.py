"""Prometheus's own checks of what it reads, by its ``promtool``."""

import os
import subprocess

import pytest

from tests.support import programs

PACKAGES = {"promtool": "prometheus"}
"""Debian's, program → package."""

_CHEAPLY = {"GOGC": "400", "GOMAXPROCS": "1"}
"""It looks for garbage less often and in one thread: two thirds of the CPU time."""


def promtool(*arguments: str, stdin: bytes = b"") -> str:
    """What it says, standard output and errors together. The test fails if it finds anything wrong, and is
    skipped where there is no promtool and it cannot be installed."""
    if (reason := programs.install(PACKAGES)) is not None:
        pytest.skip(f"Prometheus's promtool is not here: {reason}")
    line = [programs.program("promtool"), *arguments]
    done = subprocess.run(line, input=stdin, capture_output=True, env={**os.environ, **_CHEAPLY})
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said
