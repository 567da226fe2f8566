"""Earlier versions of this program, as commits of this repository, for tests of versions that meet.

The sources are taken out of the repository's history; a copy without that history skips the test.
"""

import os
import re
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from tests.support.processes import command

ONE_PROCESS = "680e686ffc565eab3d34c78ffbf2577589b78ec0"
"""Before several processes of a gateway could share a store (schema 7)."""

_FILE_OF_SEVERAL = "gateway/storage/processes.py"
"""The first version that has it is the first with several processes on one store."""

_PACKAGES = ("agent", "gateway", "shared")
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class EarlierVersion:
    """Its packages, unpacked."""

    directory: Path

    @property
    def schema(self) -> int:
        """Of its store."""
        schema = (self.directory / "gateway/storage/schema.py").read_text()
        found = re.search(r"^SCHEMA_VERSION = (\d+)$", schema, re.MULTILINE)
        assert found is not None
        return int(found[1])

    @property
    def environment(self) -> dict[str, str]:
        """For a process that is to run it: its packages come first, and the current directory does not."""
        return {"PYTHONPATH": str(self.directory), "PYTHONSAFEPATH": "1"}

    def printed(self, *arguments: str) -> str:
        """The last line of a command of that version, which must succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return (done.stdout.splitlines() or [""])[-1]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of that version, to its end."""
        return subprocess.run(
            command(*arguments),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **self.environment},
        )


def unpacked(commit: str, directory: Path) -> EarlierVersion:
    """The version of ``commit``, in ``directory``. Skips the test where the history lacks it."""
    done = _git("archive", "--format=zip", commit, *_PACKAGES)
    if done.returncode != 0:
        pytest.skip(f"this copy of the repository has no commit {commit[:8]} (git fetch --unshallow)")
    with zipfile.ZipFile(BytesIO(done.stdout)) as archive:
        archive.extractall(directory)
    return EarlierVersion(directory)


def first_of_several() -> str:
    """The commit that brought several processes on one store. Skips the test where there is no history."""
    found = _git("log", "--diff-filter=A", "--format=%H", "--", _FILE_OF_SEVERAL).stdout.split()
    if not found:
        pytest.skip("this copy of the repository has no history")
    return found[-1].decode()


def _git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    git = shutil.which("git")
    if git is None:
        pytest.skip("no git, which has the version before")
    return subprocess.run([git, "-C", str(_ROOT), *arguments], capture_output=True, timeout=60, check=False)
