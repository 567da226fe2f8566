"""What the processes of a run said of their own defects."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_TRACEBACK = "Traceback (most recent call last)"
_TEXT_ERROR = re.compile(r"\[(?:error|critical) *\] (\S+(?: \S+)*?)(?:  |$)")


def defects_in(directory: Path, expected: Mapping[str, int] = MappingProxyType({})) -> list[str]:
    """Errors and tracebacks in the logs there, counted by what they say, without as many as are
    ``expected``. Warnings are none of them."""
    found: Counter[str] = Counter()
    for path in sorted(directory.glob("*.log")):
        name = path.name.partition(".")[0]
        for line in path.read_text("utf-8", "replace").splitlines():
            said = _defect(line)
            if said:
                found[f"{name} logged {said}"] += 1
    found -= Counter(expected)
    return [f"{count} × {said}" for said, count in found.most_common()]


def _defect(line: str) -> str:
    """What a line says, if it tells of a defect."""
    if line.startswith("{"):
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            return ""
        if event.get("level") not in ("error", "critical"):
            return ""
        last = str(event.get("exception", "")).strip().rpartition("\n")[2]
        return f"{event.get('event')} {last}".strip()
    if error := _TEXT_ERROR.search(line):
        return error[1]
    return "a traceback" if _TRACEBACK in line else ""
