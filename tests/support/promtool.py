"""Prometheus's own checks of what it reads, by its ``promtool``."""

import subprocess

import pytest

from tests.support import programs

PACKAGES = {"promtool": "prometheus"}
"""Debian's, program → package."""


def promtool(*arguments: str, stdin: bytes = b"") -> str:
    """What it says, standard output and errors together. The test fails if it finds anything wrong, and is
    skipped where there is no promtool and it cannot be installed."""
    had = programs.find("promtool") is not None
    if (reason := programs.install(PACKAGES)) is not None:
        pytest.skip(f"Prometheus's promtool is not here: {reason}")
    if not had and (systemctl := programs.find("systemctl")) is not None:  # the package begins a server
        subprocess.run([systemctl, "disable", "--now", "prometheus"], capture_output=True, check=False)
    done = subprocess.run([programs.program("promtool"), *arguments], input=stdin, capture_output=True)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said
