"""Programs of the system that some tests and loads need: found, and installed from Debian where possible.

``python tests/support/programs.py`` has all that the tests of a whole run need, and needs only Python itself.
Where it cannot, it says why and exits with 0: the tests that need them are skipped and counted.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

WHOLE_RUN = {
    "chromium-headless-shell": "chromium-headless-shell",
    "nginx": "nginx-light",
    "haproxy": "haproxy",
    "promtool": "prometheus",
    "faketime": "faketime",
}
"""What ``tests/run`` needs, program → Debian package."""

_SEARCH = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
_LOCK_S = 300
"""For so long a package manager that works for somebody else is waited for."""
_SERVICES = {"nginx-light": "nginx", "nginx": "nginx", "haproxy": "haproxy", "prometheus": "prometheus"}
"""What Debian's packages begin by themselves: the tests start their own."""


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
    command = ["apt-get", "-o", f"DPkg::Lock::Timeout={_LOCK_S}", "install", "-y", "--no-install-recommends"]
    command += wanted
    if os.geteuid() or not shutil.which("apt-get"):
        return f"{', '.join(wanted)} not installed; as root: apt-get install {' '.join(wanted)}"
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:  # a fresh machine has no lists of packages, or old ones
        subprocess.run(["apt-get", "update"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}"
    _end_services(wanted)
    return None


def _end_services(packages: list[str]) -> None:
    """Those of packages that were installed just now."""
    systemctl = find("systemctl")
    for service in [_SERVICES[package] for package in packages if package in _SERVICES]:
        if systemctl is not None:
            command = [systemctl, "disable", "--now", service]
            subprocess.run(command, capture_output=True, check=False)


def main() -> None:
    """Has :data:`WHOLE_RUN`, or says which tests will be skipped."""
    if install(WHOLE_RUN) is None:
        return
    for name, package in WHOLE_RUN.items():  # one that is not to be had keeps the others from nobody
        if reason := install({name: package}):
            sys.stderr.write(f"   some tests will be skipped: {reason}\n")


if __name__ == "__main__":
    main()
