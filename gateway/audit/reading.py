"""Reads an audit log as it is, without judging it."""

from collections.abc import Iterator
from pathlib import Path

import orjson

from gateway.audit.records import LINE_BYTES
from gateway.audit.segments import names
from gateway.store.errors import StateUnwritable


def read_lines(directory: Path, since: str = "", kinds: tuple[str, ...] = ()) -> Iterator[str]:
    """Whole lines, the oldest first, of acts and requests from the moment ``since`` (as lines have it) on.

    ``kinds`` are kinds, or beginnings of kinds that end with a dot; none: all. What cannot be read as a
    record is left out: :mod:`gateway.audit.verify` tells of it. Raises StateUnwritable.
    """
    try:
        for name in names(directory):
            with (directory / name).open("rb") as file:
                while line := file.readline(2 * LINE_BYTES):
                    if line.endswith(b"\n") and _wanted(line, since, kinds):
                        yield line.decode()
    except OSError as error:
        raise StateUnwritable(f"cannot read the audit log in {directory}: {error}") from error


def _wanted(line: bytes, since: str, kinds: tuple[str, ...]) -> bool:
    try:
        record = orjson.loads(line)
        at, kind = record["at"], record["kind"]
        return bool(at >= since) and (not kinds or any(_is(kind, each) for each in kinds))
    except (ValueError, TypeError, KeyError):
        return False


def _is(kind: str, wanted: str) -> bool:
    return kind.startswith(wanted) if wanted.endswith(".") else kind == wanted
