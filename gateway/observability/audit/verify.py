"""Verifies an audit log: what was changed, removed, added, doubled or put elsewhere, and where."""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gateway.observability.audit.files import LOCK_WAIT_S
from gateway.observability.audit.records import (
    LINE_BYTES,
    START,
    BadChainHead,
    ChainHead,
    decode_head,
    hash_of,
)
from gateway.observability.audit.segments import HEAD, LOCK, segment_names
from gateway.storage.errors import StateBusy, StateMissing, StateUnwritable
from gateway.storage.locks import Holding
from shared.process.excerpt import json_excerpt, printable

FINDINGS = 1000
"""Findings that are reported; a log in which more is wrong is lost anyway."""

SAID_CHARS = 200
"""Of what a line says, in a finding or a note."""

READS = 3
"""A gateway may delete old segments while they are read."""


@dataclass(slots=True)
class AuditReport:
    """What a verification found."""

    findings: list[str] = field(default_factory=list)
    """What is wrong; empty: nothing is."""
    notes: list[str] = field(default_factory=list)
    """What is in order and worth knowing: crashes recovered from, lines that were not acknowledged."""
    lines: int = 0
    segments: int = 0
    first_seq: int = 0
    last_seq: int = 0
    last_hash: str = START

    @property
    def sound(self) -> bool:
        return not self.findings

    def find(self, what: str) -> None:
        if len(self.findings) < FINDINGS:
            self.findings.append(what)

    def note(self, what: str) -> None:
        if len(self.notes) < FINDINGS:
            self.notes.append(what)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A line's number and hash, written down elsewhere earlier."""

    seq: int
    hash: str
    where: str = "was written down"
    """Ends a sentence about the line."""
    may_be_deleted: bool = False
    """It is no finding where a line of the log says that segments up to it were deleted."""


def verify(directory: Path, keys: Collection[bytes], anchors: Sequence[Anchor] = ()) -> AuditReport:
    """Read all of the log in ``directory``; ``keys`` are the gateway's public keys, of which one signs it,
    and ``anchors`` lines that must be in it, noted before this is called.

    Raises StateMissing when there is none, StateUnwritable when it cannot be read, StateBusy.
    """
    if not directory.is_dir():
        raise StateMissing(f"there is no audit log in {directory}: give the --state of the gateway")
    try:
        for _ in range(READS - 1):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, in order or not
                return _read(directory, keys, anchors)
        return _read(directory, keys, anchors)
    except OSError as error:
        raise StateUnwritable(f"cannot read the audit log in {directory}: {error}") from error


def _read(directory: Path, keys: Collection[bytes], anchors: Sequence[Anchor]) -> AuditReport:
    sizes, data = _snapshot(directory)
    report = AuditReport()
    _Reader(report, _head_of(data, keys, report), anchors).read(directory, sizes)
    return report


def _snapshot(directory: Path) -> tuple[dict[str, int], bytes]:
    """Segments with their sizes, and the head's file, as they are between two appends."""
    holding = Holding(directory / LOCK) if os.access(directory, os.W_OK) else None
    try:
        if holding is not None and not holding.alone(LOCK_WAIT_S):
            raise StateBusy(f"another process holds {directory / LOCK}: look for a stuck trunkline process")
        sizes = {name: (directory / name).stat().st_size for name in segment_names(directory)}
        head = directory / HEAD
        return sizes, head.read_bytes() if head.exists() else b""
    finally:
        if holding is not None:
            holding.close()


def _head_of(data: bytes, keys: Collection[bytes], report: AuditReport) -> ChainHead | None:
    """The head; None where something is wrong with it, which is reported."""
    if not data:
        report.find(f"{HEAD} is missing: whether lines were cut off at the end cannot be told")
        return None
    try:
        return decode_head(data, keys)
    except BadChainHead as error:
        report.find(f"{HEAD}: {error}")
        return None


class _Reader:
    """Compares each line with the one before, and both ends with the head."""

    def __init__(self, report: AuditReport, head: ChainHead | None, anchors: Sequence[Anchor]) -> None:
        self._report = report
        self._head = head
        self._anchors = [each for each in anchors if (each.seq, each.hash) != (0, START)]
        """Those that were not met yet."""
        self._seq = 0
        self._hash = START
        self._begun = False
        self._pruned_to = 1
        """The log may begin at any line up to this one."""
        self._head_met = head is not None and head.seq == 0
        self._after = ""
        """The segment before the one being read."""

    def read(self, directory: Path, sizes: Mapping[str, int]) -> None:
        for name, size_bytes in sizes.items():
            self._report.segments += 1
            for number, line, ended in _lines(directory / name, size_bytes):
                self._read_line(name, number, line, ended)
            self._after = name
        self._end()

    def _read_line(self, name: str, number: int, line: bytes, ended: bool) -> None:
        where = f"{name} line {number}"
        if not ended:
            self._incomplete(where)
            return
        record = _record(line)
        if record is None:
            self._report.find(f"{where}: changed: it is no record")
            self._seq, self._hash = self._seq + 1, hash_of(line)
            return
        digest = hash_of(line)
        if not self._begun:
            self._report.first_seq = record["seq"]
        if self._begun or record["seq"] == 1:
            self._compare(where, record, digest)
        self._begun = True
        self._learn(where, name, number, record)
        self._report.lines += 1
        self._seq, self._hash = record["seq"], digest
        self._meet(where, digest)

    def _compare(self, where: str, record: dict[str, Any], digest: str) -> None:
        """With the line before."""
        find, seq, expected = self._report.find, record["seq"], self._seq + 1
        if digest == self._hash:
            find(f"{where}: duplicated: it is line {self._seq} again")
        elif seq > expected:
            lost = f"line {expected} is" if seq == expected + 1 else f"lines {expected} to {seq - 1} are"
            find(f"{where}: {lost} missing before line {seq}")
        elif seq < expected:
            find(f"{where}: out of order: line {seq} stands after line {self._seq}")
        elif record["prev"] != self._hash:
            before = f"line {self._seq}" if self._seq else "what it says of the line before"
            find(
                f"{where}: {before} was changed, or line {seq} was: its hash is not the one line {seq} names"
            )

    def _learn(self, where: str, name: str, number: int, record: dict[str, Any]) -> None:
        """What the lines say of the log itself."""
        kind = record["kind"]
        if (kind == "segment") != (number == 1):
            self._report.find(f"{where}: a segment begins with a line that names it, and has one of them")
        if kind == "segment":
            self._begins(where, name, record)
        elif kind == "pruned" and isinstance(record.get("first"), int):
            self._pruned_to = max(self._pruned_to, record["first"])
            self._report.note(f"{where}: older segments were deleted, up to {_said(record, 'up_to')}")
        elif kind == "recovered":
            lines, cut = _said(record, "lines"), _said(record, "cut_bytes")
            what = f"{lines} unacknowledged lines were taken over, {cut} bytes of an incomplete one cut off"
            self._report.note(f"{where}: after a crash {what}")
        elif kind == "lost":
            self._report.note(
                f"{where}: {_said(record, 'records')} records could not be kept before this line"
            )
        elif kind == "head_lost":
            self._report.find(
                f"{where}: when this was written {HEAD} was no good ({_said(record, 'reason')}): lines "
                "before it may have been cut off or exchanged"
            )

    def _begins(self, where: str, name: str, record: dict[str, Any]) -> None:
        if record.get("segment") != name:
            self._report.find(f"{where}: this segment was named {_said(record, 'segment')}")
        if self._after and record.get("after") != self._after:
            self._report.find(f"{where}: segment {_said(record, 'after')} is missing before it")

    def _meet(self, where: str, digest: str) -> None:
        head = self._head
        if head is not None and self._seq == head.seq:
            self._head_met = True
            if digest != head.hash:
                self._report.find(f"{where}: changed: {HEAD} names another line {self._seq}")
        for anchor in [each for each in self._anchors if each.seq == self._seq]:
            self._anchors.remove(anchor)
            if digest != anchor.hash:
                self._report.find(f"{where}: line {self._seq} is not the one that {anchor.where}")

    def _incomplete(self, where: str) -> None:
        if self._head is not None and self._seq >= self._head.seq:
            self._report.note(f"{where}: incomplete, and was never acknowledged: a crash; it will be cut off")
        else:
            self._report.find(f"{where}: truncated")

    def _end(self) -> None:
        report, head = self._report, self._head
        report.last_seq, report.last_hash = self._seq, self._hash
        if report.first_seq > self._pruned_to:
            report.find(f"lines up to {report.first_seq - 1} are missing at the beginning")
        if head is not None and not self._head_met:
            if self._seq < head.seq:
                report.find(f"lines {self._seq + 1} to {head.seq} are missing at the end, in {head.segment}")
            else:
                report.find(f"line {head.seq}, which {HEAD} names, is missing")
        elif head is not None and self._seq > head.seq:
            report.note(f"lines {head.seq + 1} to {self._seq} are not signed yet: the writer was interrupted")
        for anchor in self._anchors:
            gone = anchor.seq < report.first_seq
            deleted = ": it was in a segment that was deleted" if gone else ""
            told = report.note if gone and anchor.may_be_deleted else report.find
            told(f"line {anchor.seq}, which {anchor.where}, is missing{deleted}")


def _said(record: Mapping[str, Any], name: str) -> str:
    """A member of a record, for a sentence. In a log that somebody has written to it may be anything."""
    value = record.get(name)
    return printable(value[:SAID_CHARS]) if isinstance(value, str) else json_excerpt(value)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
        sound = isinstance(record["seq"], int) and isinstance(record["prev"], str)
        return record if sound and isinstance(record["kind"], str) else None
    except (ValueError, TypeError, KeyError):
        return None


def _lines(path: Path, size_bytes: int) -> Iterator[tuple[int, bytes, bool]]:
    """Number, line without its newline, and whether it has one; of the first ``size_bytes``."""
    with path.open("rb") as file:
        number, left = 0, size_bytes
        while left and (line := file.readline(min(left, 2 * LINE_BYTES))):
            number += 1
            left -= len(line)
            yield number, line.removesuffix(b"\n"), line.endswith(b"\n") or len(line) == 2 * LINE_BYTES
