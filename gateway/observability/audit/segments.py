"""The audit log's files: their names, and reading them page by page, without verifying them.

Segments are called ``2026-11-21.0001.jsonl`` and on, in the order of their writing.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from gateway.observability.audit.records import LINE_BYTES
from gateway.storage.errors import BadValue, StateUnwritable

HEAD = "head.json"
LOCK = "lock"
BELIEVED = "time.json"
DIRECTORY = "audit"
"""In the state directory."""

_NAME = re.compile(r"(\d{4}-\d\d-\d\d)\.(\d{4,9})\.jsonl")
_OFFSET = re.compile(r"[0-9]{1,15}")


def segment_names(directory: Path) -> list[str]:
    """The segments there are, the oldest first."""
    if not directory.is_dir():
        return []
    found = (each.name for each in directory.iterdir() if _NAME.fullmatch(each.name))
    return sorted(found, key=segment_order)


def segment_order(name: str) -> tuple[str, int]:
    """Segments that were written later come later; nothing comes first."""
    return (name[:10], int(name[11:-6])) if name else ("", 0)


def next_segment_name(last: str, day: str) -> str:
    """The segment after ``last`` (empty: the first). Never a name from before, whatever the clock says."""
    match = _NAME.fullmatch(last)
    if match is None or match[1] < day:
        return f"{day}.0001.jsonl"
    return f"{match[1]}.{int(match[2]) + 1:04}.jsonl"


def of_day(wall_s: float) -> str:
    """The day (UTC) of a time, as segments name it."""
    return datetime.fromtimestamp(wall_s, UTC).date().isoformat()


PAGE_LINES = 1000
PAGE_BYTES = 1024 * 1024
"""The most lines in one page, and the most bytes of the log that are read for it, matching or not."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a log, of bounded length."""

    lines: list[str]
    next: str | None
    """Where the part behind it begins; None: nothing is behind it yet."""


def read_page(
    directory: Path, since: str, kinds: tuple[str, ...], after: str | None, most: int | None = None
) -> Page:
    """Whole lines, the oldest first, from the place ``after`` on, which another page named as its ``next``
    (None: from the beginning): at most ``most``, and so many as are in PAGE_BYTES of the log.

    Lines are of the time ``since`` (as lines have it) or later. ``kinds`` are kinds, or beginnings of kinds
    that end with a dot; none: all. What cannot be read as a record is left out:
    :mod:`gateway.observability.audit.verify` reports it. Raises BadValue for a bad place, StateUnwritable.
    """
    first, offset = _place(after)
    lines: list[str] = []
    read_bytes, most = 0, min(most or PAGE_LINES, PAGE_LINES)
    try:
        for name in segment_names(directory):
            if segment_order(name) < segment_order(first):
                continue
            with (directory / name).open("rb") as file:
                file.seek(offset if name == first else 0)
                while line := file.readline(2 * LINE_BYTES):
                    if not line.endswith(b"\n") and len(line) < 2 * LINE_BYTES:
                        break  # it is being written, or was cut off
                    read_bytes += len(line)
                    if line.endswith(b"\n") and _wanted(line, since, kinds):
                        lines.append(line[:-1].decode())
                    if len(lines) >= most or read_bytes >= PAGE_BYTES:
                        return Page(lines, f"{name}@{file.tell()}")
    except OSError as error:
        raise StateUnwritable(f"cannot read the audit log in {directory}: {error}") from error
    return Page(lines, None)


def _place(text: str | None) -> tuple[str, int]:
    """The segment and the place in it. Raises BadValue."""
    if text is None:
        return "", 0
    name, _, offset = text.partition("@")
    if not _NAME.fullmatch(name) or not _OFFSET.fullmatch(offset):
        raise BadValue("after is what an answer before gave as next")
    return name, int(offset)


def _wanted(line: bytes, since: str, kinds: tuple[str, ...]) -> bool:
    try:
        record = orjson.loads(line)
        at, kind = record["at"], record["kind"]
        beginnings = tuple(each for each in kinds if each.endswith("."))
        return bool(at >= since) and (not kinds or kind in kinds or kind.startswith(beginnings))
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
