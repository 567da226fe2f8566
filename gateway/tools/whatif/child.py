"""A what-if for a gateway, in a process of its own: ``python -m gateway.tools.whatif.child``.

Standard input is one JSON object: a :class:`gateway.api.admin.whatif_child.WhatIfTask`. Standard output
are JSON lines: ``progress`` as often as :data:`EVERY_S`, and at the end ``result``, or ``error`` with what is
wrong. The simulation takes this process's CPU and memory and nobody else's; both are bounded.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from gateway.api.admin.whatif_body import WhatIfBody
from gateway.tools.simulate.inputs import BadSpec
from gateway.tools.whatif.fleet import read_fleet
from gateway.tools.whatif.log import read_log, recorded
from gateway.tools.whatif.recording import ReplayRecording, export
from gateway.tools.whatif.run import NothingToReplay, run_whatif

EVERY_S = 0.2

NICENESS = 19
"""Every request comes first."""

CPU_S = 600
MEMORY_BYTES = 4 << 30
"""The most that it may take, whatever goes wrong."""

Json = dict[str, Any]


def answer(task: Json, report: Callable[[int, int], None]) -> Json:
    """What a task comes to: ``result``, or ``error`` with ``code``, ``message`` and ``param``."""
    body = WhatIfBody.model_validate(task["body"])
    try:
        recording = _recording(task, body)
        if task["wanted"] == "facts":
            return {"result": export(recording, task["fleet"])}
        return {"result": run_whatif(recording, read_fleet(task["fleet"]), body, report)}
    except NothingToReplay as error:
        return {"error": {"code": "nothing_to_replay", "message": str(error), "param": None}}
    except BadSpec as error:
        return {"error": {"code": "invalid_value", "message": str(error), "param": error.option}}
    except OSError as error:
        return {"error": {"code": "unreadable", "message": f"the audit log: {error.strerror}", "param": None}}
    except MemoryError:
        return {"error": {"code": "too_large", "message": "it takes more memory than it may", "param": None}}


def _recording(task: Json, body: WhatIfBody) -> ReplayRecording:
    until_s, most = float(task["until_s"]), int(task["most"])
    since_s = until_s - 60 * body.minutes
    if task["log"] is None:
        return recorded(task["records"], since_s, until_s, most)
    return read_log(Path(task["log"]), since_s, until_s, most)


class ProgressLines:
    """Writes how far it is, not too often."""

    def __init__(self, write: Callable[[Json], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._next_s = 0.0

    def __call__(self, done: int, of: int) -> None:
        now = self._clock()
        if now >= self._next_s:
            self._next_s = now + EVERY_S
            self._write({"progress": {"done": done, "of": of}})


def _limit() -> None:
    """Bound what this process takes, where that can be done."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return
    for kind, most in ((resource.RLIMIT_CPU, CPU_S), (resource.RLIMIT_AS, MEMORY_BYTES)):
        _, hard = resource.getrlimit(kind)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, hard))


def _write(line: Json) -> None:
    sys.stdout.buffer.write(orjson.dumps(line) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Answer the task on standard input."""
    _limit()
    _write(answer(orjson.loads(sys.stdin.buffer.read()), ProgressLines(_write)))


if __name__ == "__main__":
    main()
