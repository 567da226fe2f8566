"""``python -m tests.support.call_counter FILE MODULE ARGUMENTS``: runs a module and counts its calls.

SIGUSR1 begins to count the calls of the main thread, or ends it and writes them to FILE: for each stage (a
room of the packages) how many Python functions were entered and how many functions in C were called. What a
library does counts for the stage that called it. Counts do not depend on the machine, so a test can hold
them.
"""

import json
import os
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_ROOT = str(Path(__file__).parents[2]) + os.sep
_DEPTH = {"gateway": 2, "agent": 2, "shared": 2}
"""How many names of a module's path are its stage."""

LOOP = "event loop"
"""The stage of what no room has called."""


def stage_of(filename: str) -> str | None:
    """``gateway/api``, ``shared/protocol``, …; None for what is not ours."""
    if not filename.startswith(_ROOT):
        return None
    names = filename[len(_ROOT) :].split(os.sep)
    depth = _DEPTH.get(names[0])
    return None if depth is None else "/".join(names[:depth]).removesuffix(".py")


def _file_of(frame: FrameType) -> str:
    """The file of a function; of what is generated for a class (its ``__init__``, say), that of the class."""
    filename = frame.f_code.co_filename
    return frame.f_globals.get("__file__", filename) if filename.startswith("<") else filename


class CallCounter:
    """A profile function that counts by stage. Begin and end it on the thread that is counted."""

    def __init__(self) -> None:
        self.python: Counter[str] = Counter()
        self.c: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()
        """Entries of each Python function of ours, and of each function in C by the stage that called it."""
        self._stages: dict[CodeType, str | None] = {}
        self._stack: list[str] = []

    def begin(self) -> None:
        self._stack = []
        sys.setprofile(self._profile)

    def end(self) -> None:
        sys.setprofile(None)

    def to_mapping(self) -> dict[str, dict[str, int]]:
        return {"python": dict(self.python), "c": dict(self.c), "functions": dict(self.functions)}

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        stack = self._stack
        if event == "call":
            code = frame.f_code
            try:
                stage = self._stages[code]
            except KeyError:
                stage = self._stages[code] = stage_of(_file_of(frame))
            stage = stage or (stack[-1] if stack else LOOP)
            stack.append(stage)
            self.python[stage] += 1
            self.functions[f"{stage} {code.co_qualname}"] += 1
        elif event == "return":
            if stack:
                stack.pop()
        elif event == "c_call":
            stage = stack[-1] if stack else LOOP
            self.c[stage] += 1
            self.functions[f"{stage} ({getattr(called, '__qualname__', called)})"] += 1


def main() -> None:
    """The module runs as ``__main__`` does."""
    file, module = Path(sys.argv[1]), sys.argv[2]
    counters: list[CallCounter] = []

    def toggle(number: int, frame: FrameType | None) -> None:
        if counters:
            counter = counters.pop()
            counter.end()
            part = file.with_suffix(".part")
            part.write_text(json.dumps(counter.to_mapping()))
            part.replace(file)
        else:
            counters.append(CallCounter())
            counters[-1].begin()

    signal.signal(signal.SIGUSR1, toggle)
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
