"""Names of the audit log's files: ``2026-11-21.0001.jsonl`` and on, in the order of their writing."""

import re
from datetime import UTC, datetime
from pathlib import Path

HEAD = "head.json"
LOCK = "lock"
BELIEVED = "time.json"
DIRECTORY = "audit"
"""In the state directory."""

_NAME = re.compile(r"(\d{4}-\d\d-\d\d)\.(\d{4,9})\.jsonl")


def names(directory: Path) -> list[str]:
    """The segments there are, the oldest first."""
    if not directory.is_dir():
        return []
    found = (each.name for each in directory.iterdir() if _NAME.fullmatch(each.name))
    return sorted(found, key=order)


def is_name(text: str) -> bool:
    """Whether a segment may be called so."""
    return _NAME.fullmatch(text) is not None


def order(name: str) -> tuple[str, int]:
    """Segments that were written later come later; nothing comes first."""
    return (name[:10], int(name[11:-6])) if name else ("", 0)


def next_name(last: str, day: str) -> str:
    """The segment after ``last`` (empty: the first). Never a name from before, whatever the clock says."""
    match = _NAME.fullmatch(last)
    if match is None or match[1] < day:
        return f"{day}.0001.jsonl"
    return f"{match[1]}.{int(match[2]) + 1:04}.jsonl"


def of_day(wall_s: float) -> str:
    """The day (UTC) of a moment, as segments name it."""
    return datetime.fromtimestamp(wall_s, UTC).date().isoformat()
