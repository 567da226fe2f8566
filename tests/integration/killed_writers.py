"""Processes that write one after the other, say what they wrote, and are killed in the middle of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SAY = """
import os, sys

def say(*words):  # print() may write a line in pieces, and be killed between them
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
_WRITE_IN_TURN = """
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        write(line.strip())
        os._exit(1)
    os.waitpid(child, 0)
    say("over")
"""


@dataclass(frozen=True)
class Killed:
    """What a process said that it wrote until it was killed, a list of words for each line."""

    said: list[list[str]]
    killed_s: float
    """On the monotonic clock."""


class KilledWriters:
    """The processes, each a child of one that has imported everything."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._orders, self._said = process.stdin, process.stdout

    def killed_after(self, run: str, lines: int) -> Killed:
        """The next one writes ``run`` until it has said so many lines, or a few more."""
        print(run, file=self._orders, flush=True)
        pid, said, killed_s = int(self._said.readline().split()[1]), list[list[str]](), 0.0
        while (line := self._said.readline()) != "over\n":
            said.append(line.split())
            if len(said) == lines:
                killed_s = time.monotonic()
                os.kill(pid, signal.SIGKILL)
        assert killed_s, "the writer ended by itself"
        return Killed(said, killed_s)


@contextmanager
def killed_writers(program: str, directory: Path) -> Iterator[KilledWriters]:
    """``program`` defines ``write(run)``, which says ``pid`` and its own first, by ``say(*words)``, a whole
    line in each call; its argument is ``directory``."""
    command = [sys.executable, "-c", _SAY + program + _WRITE_IN_TURN, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield KilledWriters(process)
        assert process.stdin is not None
        process.stdin.close()
