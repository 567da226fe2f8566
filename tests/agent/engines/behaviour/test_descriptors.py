"""An agent without file descriptors: nothing is sent, so everything may be moved; and it recovers."""

import subprocess
import sys


def test_without_descriptors_requests_are_unreachable_until_there_are_some_again() -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.agent.engines.behaviour.without_descriptors"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (ended.stdout + ended.stderr).count("engine lost") == 1
