"""A native library that was built from other sources than these is left alone."""

import os
import subprocess
import sys

import pytest

from shared import speedups

_PROGRAM = """
import sys
from types import ModuleType

class Other(ModuleType):
    INTERFACE = {interface}

    def __getattr__(self, name):
        if name == "INTERFACE" or name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments: None

other = Other("shared.speedups._native")
if other.INTERFACE is None:
    del Other.INTERFACE
sys.modules[other.__name__] = other
import shared.speedups
print(shared.speedups.NATIVE)
"""


@pytest.mark.parametrize("ahead", [None, -1, 0, 1])
def test_only_one_of_the_same_interface_is_used(ahead: int | None) -> None:
    """``ahead`` of the interface that Python has here; None: from before interfaces were counted."""
    interface = None if ahead is None else speedups._INTERFACE + ahead
    environment = {name: value for name, value in os.environ.items() if name != "TRUNKLINE_NATIVE"}
    used = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(interface=interface)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=60,
    )
    assert used.stdout.strip() == str(ahead == 0)


@pytest.mark.skipif(not speedups.NATIVE, reason="no native functions here")
def test_what_is_built_here_is_used() -> None:
    assert speedups.native is not None
    assert speedups.native.INTERFACE == speedups._INTERFACE
