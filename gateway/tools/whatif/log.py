"""Requests of a time in the audit log, which is read from its end, and read no further back than is needed.

Lines are about in the order of their time: those of several workers, and those that waited for the disk, come
:data:`LATE_S` late at most.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from gateway.observability.audit.records import timestamp
from gateway.observability.audit.segments import segment_names
from gateway.tools.whatif.facts import NotReplayed, ReplayFact, fact_of_line
from gateway.tools.whatif.recording import ReplayRecording

LATE_S = 60.0

BIN_S = 10
"""Where there are too many requests, the time that is replayed begins and ends at multiples of this."""

_MOST_LINE_BYTES = 1 << 20
_NEAR_BYTES = 1 << 16
"""How close to the first line that is wanted the search ends."""

_AT = b'"at":"'
_REQUEST, _MODEL = b'"kind":"request"', b'"model":"'
_TIME_CHARS = len("2026-11-21T20:30:00.123Z")


def read_log(directory: Path, since_s: float, until_s: float, most: int) -> ReplayRecording:
    """Requests that arrived from ``since_s`` on and were over by ``until_s``; ``most`` of them, those of the
    busiest time, where there are more. Raises OSError."""
    ends = _count_ends(directory, since_s, until_s)
    seen = sum(ends.values())
    first_s, last_s = since_s, until_s
    if seen > most:
        first_s, last_s = busiest(ends, most)
    records = (_record(line) for line, _ in _lines(directory, first_s, until_s))
    return _recorded(records, first_s, last_s, seen, most, "the audit log")


def recorded(
    records: Sequence[Mapping[str, Any]], since_s: float, until_s: float, most: int
) -> ReplayRecording:
    """The same of ``records``, which have the members of such lines: decision records in memory."""
    asked = [record for record in records if record.get("model")]
    ended = [record for record in asked if since_s <= _seconds(str(record.get("at"))) <= until_s]
    ended.sort(key=lambda record: str(record.get("at")))
    latest = ended[-most:]
    words = "the decision records of the process that was asked, since no audit log of requests is kept"
    return _recorded(latest, since_s, until_s, len(ended), most, words)


def _recorded(
    records: Iterable[Mapping[str, Any]], first_s: float, last_s: float, seen: int, most: int, source: str
) -> ReplayRecording:
    left_out = Counter[str]()
    facts: list[ReplayFact] = []
    for record in records:
        try:
            fact = fact_of_line(record)
        except NotReplayed as error:
            left_out[error.code] += 1
            continue
        if fact.at_s < first_s:
            left_out["earlier"] += 1
        elif fact.at_s < last_s and len(facts) < most:
            facts.append(fact)
    facts.sort(key=lambda fact: fact.at_s)
    return ReplayRecording(facts, first_s, last_s, seen, dict(left_out), source)


def busiest(ends: Counter[int], most: int) -> tuple[float, float]:
    """The longest time around the busiest :data:`BIN_S` seconds that has no more than ``most``, at least
    those seconds themselves. ``ends`` are counts by the number of such times since 1970."""
    first = last = max(ends, key=lambda each: (ends[each], each))
    count, (lowest, highest) = ends[first], (min(ends), max(ends))
    while first > lowest or last < highest:
        before = ends[first - 1] if first > lowest else -1
        after = ends[last + 1] if last < highest else -1
        count += max(before, after)
        if count > most:
            break
        if before > after:
            first -= 1
        else:
            last += 1
    return float(first * BIN_S), float((last + 1) * BIN_S)


def _count_ends(directory: Path, since_s: float, until_s: float) -> Counter[int]:
    """How many requests ended when."""
    ends = Counter[int]()
    for _, at in _lines(directory, since_s, until_s):
        ends[int(_seconds(at) // BIN_S)] += 1
    return ends


def _lines(directory: Path, since_s: float, until_s: float) -> Iterator[tuple[bytes, str]]:
    """Lines of requests for models that ended in this time, with when, as lines say it."""
    since, until, early = timestamp(since_s), timestamp(until_s), timestamp(since_s - LATE_S)
    late = timestamp(until_s + LATE_S)
    for path in _segments(directory, early):
        try:
            file = path.open("rb")
        except FileNotFoundError:
            continue  # it was pruned just now
        with file:
            _seek(file, early)
            while (line := file.readline(_MOST_LINE_BYTES)).endswith(b"\n"):
                at = _time_of(line)
                if at > late:
                    break
                if since <= at <= until and _REQUEST in line and _MODEL in line:
                    yield line, at


def _segments(directory: Path, since: str) -> list[Path]:
    """Those that may have lines from ``since`` on, the oldest first."""
    found: list[Path] = []
    for name in reversed(segment_names(directory)):
        path = directory / name
        found.append(path)
        try:
            with path.open("rb") as file:
                if _time_of(file.readline(_MOST_LINE_BYTES)) < since:
                    break
        except FileNotFoundError:
            found.pop()
    return found[::-1]


def _seek(file: BinaryIO, since: str) -> None:
    """Go to the beginning of a line before which none is of ``since`` or later."""
    low, high = 0, file.seek(0, os.SEEK_END)
    while high - low > _NEAR_BYTES:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline(_MOST_LINE_BYTES)
        if _time_of(file.readline(_MOST_LINE_BYTES)) < since:
            low = middle
        else:
            high = middle
    file.seek(low)
    if low:
        file.readline(_MOST_LINE_BYTES)


def _time_of(line: bytes) -> str:
    """When it was written; the beginning of time for what is no line."""
    begin = line.find(_AT) + len(_AT)
    return line[begin : begin + _TIME_CHARS].decode("ascii", "replace") if begin >= len(_AT) else ""


def _seconds(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return datetime(1970, 1, 1, tzinfo=UTC).timestamp()


def _record(line: bytes) -> dict[str, Any]:
    """Empty for what is no record of a request."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) and found.get("kind") == "request" else {}
