"""Several processes that do the same thing at the same moment."""

import os
import subprocess
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from gateway.runtime.workers.forked import end_fork

_ROOT = Path(__file__).parents[2]


def race(imports: str, code: str, *arguments: str, runners: int = 4) -> list[str]:
    """Run Python ``code`` in ``runners`` processes that begin it together; what each printed.

    ``imports`` runs beforehand, in a process that they are then forked from, so that its time is not part of
    the race; ``arguments`` are sys.argv[1:]. Raises subprocess.CalledProcessError when one fails.
    """
    with TemporaryDirectory(prefix="trunkline-race-") as name:
        begin = f"import sys\n{imports}\nfrom tests.support.race import run_forks\n"
        run = f"run_forks({code!r}, {name!r}, {runners})"
        subprocess.run([sys.executable, "-c", begin + run, *arguments], cwd=_ROOT, timeout=60, check=True)
        return [Path(name, str(number)).read_text() for number in range(runners)]


def run_forks(code: str, directory: str, runners: int) -> NoReturn:
    """Run ``code`` in forks of this process, each of which prints into a file of its number, and end with
    status 1 where one of them fails."""
    waits, go = os.pipe()
    forks = []
    for number in range(runners):
        fork = os.fork()
        if fork == 0:
            os.close(go)
            _run_fork(code, Path(directory, str(number)), waits)
        forks.append(fork)
    os.close(go)
    statuses = [os.waitpid(fork, 0)[1] for fork in forks]
    sys.exit(any(statuses))


def _run_fork(code: str, output: Path, waits: int) -> NoReturn:
    status = 1
    try:
        with output.open("wb") as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
        os.read(waits, 1)  # until nobody can write
        exec(code, vars(sys.modules["__main__"]))
        status = 0
    except BaseException:
        traceback.print_exc()
    end_fork(status)


def elsewhere(code: str, *arguments: str) -> str:
    """Run Python ``code`` in one other process; what it printed."""
    return race("", code, *arguments, runners=1)[0]
