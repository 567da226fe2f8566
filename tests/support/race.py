"""Several processes that do the same thing at the same moment."""

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PREAMBLE = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"


def race(imports: str, code: str, *arguments: str, runners: int = 4) -> list[str]:
    """Run Python ``code`` in ``runners`` processes that begin it together; what each printed.

    ``imports`` runs beforehand, so that its time is not part of the race; ``arguments`` are sys.argv[1:].
    Raises AssertionError when one of them fails.
    """
    command = [sys.executable, "-c", f"{imports}\n{_PREAMBLE}{code}", *arguments]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        for _ in range(runners)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * runners
    return printed


def elsewhere(code: str, *arguments: str) -> str:
    """Run Python ``code`` in one other process; what it printed."""
    return race("", code, *arguments, runners=1)[0]
