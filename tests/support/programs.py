"""Programs of the system that some tests and loads need: found, and installed from Debian where possible."""

import os
import shutil
import subprocess
from collections.abc import Mapping

_SEARCH = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"


def find(name: str) -> str | None:
    """Its path, also outside a user's PATH."""
    return shutil.which(name, path=_SEARCH)


def program(name: str) -> str:
    """The path of one that is known to be there."""
    found = find(name)
    assert found is not None, f"{name} is not installed"
    return found


def missing(packages: Mapping[str, str]) -> list[str]:
    """Of ``packages`` (program → Debian package), those whose program is not there."""
    return [package for name, package in packages.items() if find(name) is None]


def install(packages: Mapping[str, str]) -> str | None:
    """Have them. None, or what keeps them from being installed here and what to do."""
    wanted = missing(packages)
    if not wanted:
        return None
    command = ["apt-get", "install", "-y", "--no-install-recommends", *wanted]
    if os.geteuid() or not shutil.which("apt-get"):
        return f"{', '.join(wanted)} not installed; as root: {' '.join(command)}"
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:  # a fresh machine has no lists of packages, or old ones
        subprocess.run(["apt-get", "update"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}"
    return None
