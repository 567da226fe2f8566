"""Has the store know the head of an audit log, so that a log that was cut short or written anew is found.

Belongs to the audit log's thread. The head is noted every ``EVERY_S`` while there are new lines, and at the
end. Before a later head takes an earlier one's place, the earlier line must still be in the log: else whoever
wrote the log anew would only have to wait for the next one.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog

from gateway.observability.audit.records import ChainHead, hash_of
from gateway.observability.audit.segments import segment_names, segment_order
from gateway.storage.audit_heads import AuditHead
from gateway.storage.errors import StateError

_log = structlog.get_logger(__name__)

EVERY_S = 10.0
"""Between two notes: lines that are younger may be cut off unseen."""

_BLOCK_BYTES = 256 * 1024


class AuditHeadSource(Protocol):
    """:class:`gateway.storage.audit_heads.AuditHeadStore`."""

    def get(self, chain: str, /) -> AuditHead | None: ...
    def note(self, head: AuditHead, /) -> None: ...


class HeadAnchor:
    """The head of one log, in the store."""

    def __init__(
        self,
        heads: AuditHeadSource,
        chain: str,
        directory: Path,
        *,
        clock: Callable[[], float],
        every_s: float = EVERY_S,
    ) -> None:
        """``clock`` gives seconds and is one that nobody sets."""
        self._heads = heads
        self._chain = chain
        self._directory = directory
        self._clock = clock
        self._every_s = every_s
        self._appended: ChainHead | None = None
        """Not noted yet; None: nothing is new."""
        self._noted_s = float("-inf")
        self._failing = False
        self._broken: AuditHead | None = None
        """The line that is not in the log any more."""

    def appended(self, head: ChainHead) -> None:
        """The log has a new head, which is on the disk."""
        self._appended = head

    def note(self, wall_s: float, *, at_once: bool = False) -> None:
        """Tell the store of the latest head, if it is time. A store that fails is told of it later."""
        head, now = self._appended, self._clock()
        if head is None or (now - self._noted_s < self._every_s and not at_once):
            return
        self._noted_s = now
        try:
            before = self._heads.get(self._chain)
            if before is not None and not self._follows(head, before):
                self._report(before)
                return
            host = socket.gethostname()
            self._heads.note(AuditHead(self._chain, head.seq, head.hash, wall_s, host))
        except (StateError, OSError) as error:
            if not self._failing:
                _log.warning("audit_head_not_noted", error=str(error))
            self._failing = True
            return
        self._failing, self._broken, self._appended = False, None, None

    def _follows(self, head: ChainHead, before: AuditHead) -> bool:
        """Whether the line that the store knows is in the log, at ``head`` or before it. One beyond it is
        there where another process wrote it meanwhile, and is left to that."""
        if before.seq > head.seq:
            return _is_later(self._directory, head, before)
        line = line_before(self._directory, head, head.seq - before.seq)
        return line is None or hash_of(line) == before.hash

    def _report(self, before: AuditHead) -> None:
        if self._broken != before:
            _log.error(
                "audit_log_broken",
                line=before.seq,
                what="the line that the store knows is not in the audit log any more: somebody cut the log "
                "short or wrote it anew; see trunkline audit verify",
            )
        self._broken = before


def _is_later(directory: Path, head: ChainHead, known: AuditHead) -> bool:
    """Whether the line that the store knows stands behind ``head``."""
    lines = 0
    for name in segment_names(directory):
        if segment_order(name) < segment_order(head.segment):
            continue
        with (directory / name).open("rb") as file:
            file.seek(head.end_bytes if name == head.segment else 0)
            for line in file:
                lines += 1
                if head.seq + lines == known.seq:
                    return hash_of(line.removesuffix(b"\n")) == known.hash
    return False


def line_before(directory: Path, head: ChainHead, back: int) -> bytes | None:
    """The line so many before the one at ``head``, without its newline; None where it was deleted with its
    segment. Reads backwards, a bounded block at a time. Raises OSError."""
    end = segment_order(head.segment)
    names = [name for name in segment_names(directory) if segment_order(name) <= end]
    for name in reversed(names):
        path = directory / name
        end_bytes = head.end_bytes if name == head.segment else path.stat().st_size
        found = _from_end(path, end_bytes, back)
        if isinstance(found, bytes):
            return found
        back = found
    return None


def _from_end(path: Path, end_bytes: int, back: int) -> bytes | int:
    """The line so many before the last one of the file's first ``end_bytes``; else how many lines are still
    to go back in the file before."""
    with path.open("rb") as file:
        place, newlines = end_bytes, 0
        while place > 0:
            start = max(0, place - _BLOCK_BYTES)
            file.seek(start)
            block = file.read(place - start)
            here = block.count(b"\n")
            if newlines + here > back:
                return _line_ending_at(file.fileno(), start + _nth_last(block, back - newlines))
            newlines, place = newlines + here, start
    return back - newlines


def _nth_last(block: bytes, skipped: int) -> int:
    """Where the newline is that so many others follow."""
    end = len(block)
    for _ in range(skipped + 1):
        end = block.rfind(b"\n", 0, end)
    return end


def _line_ending_at(descriptor: int, newline: int) -> bytes:
    """The line whose newline is at this place."""
    data, place = b"", newline
    while place > 0 and b"\n" not in data:
        start = max(0, place - _BLOCK_BYTES)
        data = os.pread(descriptor, place - start, start) + data
        place = start
    return data.rpartition(b"\n")[2]
