"""The audit log on the disk: appends batches, recovers after crashes, begins and deletes segments.

Nothing is remembered between two appends, so any number of processes may append in turn: each holds the lock,
reads the head, writes and syncs the lines, then the head. After a crash in between, lines may lie beyond the
head: the next one to append takes over what is whole and follows on, cuts off what is not, and says so in a
line of its own (``recovered``).
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from gateway.observability.audit.records import (
    LINE_BYTES,
    START,
    AuditEntry,
    BadChainHead,
    ChainHead,
    Signer,
    decode_head,
    encode_head,
    hash_of,
    lines_of,
)
from gateway.observability.audit.segments import (
    BELIEVED,
    HEAD,
    LOCK,
    next_segment_name,
    of_day,
    segment_names,
    segment_order,
)
from gateway.observability.audit.trusted_time import TrustedTime, read_trusted_time
from gateway.storage.errors import StateBusy, StateUnwritable
from gateway.storage.locks import Holding

_NO_LINK = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
"""A symbolic link in a file's place is refused: whoever may write here could have root write elsewhere."""

LOCK_WAIT_S = 5.0
DAY_S = 86_400.0
MIB = 1024 * 1024


class AuditUnwritable(StateUnwritable):
    """The audit log takes no lines just now: a full disk, permissions. Nothing was appended."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of the log is kept."""

    days: int = 400
    total_bytes: int = 10 * 1024 * MIB
    """Beyond, the oldest segments go even if they are younger."""
    segment_bytes: int = 64 * MIB
    """A segment that is longer gets no more lines."""


class AuditFiles:
    """The log in one directory. Usable by one thread at a time; other processes may use the directory too."""

    def __init__(self, directory: Path, signer: Callable[[], Signer], keep: Retention = Retention()) -> None:
        """``signer`` gives the gateway's key of now; it may raise StateError."""
        self.directory = directory
        self.signer = signer
        self.keep = keep
        self.unreported: list[AuditEntry] = []
        """Lines about what was cut off, which could not be written yet."""

    @contextlib.contextmanager
    def held(self, wall_s: float, earlier: Callable[[], Collection[bytes]] = tuple) -> Iterator["Appender"]:
        """The log for this process alone, recovered. ``earlier`` gives public keys, besides the gateway's of
        now, that may have signed the head; both are asked for once nobody else can sign another.

        Raises AuditUnwritable, StateBusy and what they raise."""
        with _foreign_errors(self.directory):
            self._make_directory()
        holding = Holding(self.directory / LOCK)
        try:
            if not holding.alone(LOCK_WAIT_S):
                raise StateBusy(f"another process holds {self.directory / LOCK}: look for a stuck trunkline")
            signer = self.signer()
            keys = frozenset((signer.public_key, *earlier()))
            with _foreign_errors(self.directory):
                yield Appender(self, signer, keys, wall_s)
        finally:
            holding.close()

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(mode=0o700)
        except FileExistsError:
            return
        _give_to_owner(self.directory, self.directory.parent)
        (self.directory / LOCK).touch(mode=0o600)
        _give_to_owner(self.directory / LOCK, self.directory)

    def trusted_time(self, wall_s: float) -> TrustedTime:
        """The time of day that was believed last; else that of the newest line; ``wall_s`` where there is
        none. Raises AuditUnwritable."""
        with _foreign_errors(self.directory):
            found = read_trusted_time(self.directory / BELIEVED)
            if found is None and (present := segment_names(self.directory)):
                found = TrustedTime(_last_time(self.directory / present[-1], wall_s))
        return found or TrustedTime(wall_s)

    def save_trusted_time(self, trusted_time: TrustedTime) -> None:
        """Raises AuditUnwritable."""
        with _foreign_errors(self.directory):
            self._make_directory()
            _replace(self.directory / BELIEVED, orjson.dumps(trusted_time) + b"\n")


class Appender:
    """The log while it is held. Methods raise OSError."""

    def __init__(self, files: AuditFiles, signer: Signer, keys: Collection[bytes], wall_s: float) -> None:
        self._directory = files.directory
        self._keep = files.keep
        self._unreported = files.unreported
        self.signer = signer
        self._notes: list[AuditEntry] = []
        """To be written before the entries of the next append."""
        self.head = self._read_head(keys, wall_s)
        self._recover(wall_s)

    def append(
        self,
        entries: Sequence[AuditEntry | bytes],
        wall_s: float,
        taken: Sequence[str] = (),
        rest: Callable[[], None] = lambda: None,
    ) -> ChainHead:
        """Append ``entries``; the new head. ``taken`` are acts that are lines then and may still wait.
        ``rest`` is called between pieces of the work."""
        self._begin_segment(wall_s)
        lines, seq, last = lines_of(
            [*self._notes, *self._unreported, *entries], self.head.seq, self.head.hash, rest
        )
        rest()
        name, begins = self.head.segment, self.head.end_bytes
        head = replace(self.head, seq=seq, hash=last, end_bytes=begins + len(lines), taken=tuple(taken))
        try:
            self._write(name, lines, begins)
            _replace(self._directory / HEAD, encode_head(head, self.signer))
        except OSError:  # lines that no head names are taken back: their callers come again with them
            with contextlib.suppress(OSError):
                _truncate(self._directory / name, begins)
            raise
        self.head = head
        self._notes.clear()
        self._unreported.clear()
        return self.head

    def prune(self, wall_s: float) -> list[str]:
        """Delete segments that are to be kept no longer; their names. A line says so first."""
        present = segment_names(self._directory)
        gone = self._too_old(present, wall_s)
        if not gone:
            return []
        with (self._directory / present[len(gone)]).open("rb") as file:
            first = _seq_of(file.readline().rstrip(b"\n"))
        facts = {"segments": len(gone), "up_to": gone[-1], "first": first}
        self.append([AuditEntry(wall_s, "pruned", facts)], wall_s, self.head.taken)
        for name in gone:
            (self._directory / name).unlink(missing_ok=True)
        return gone

    def _too_old(self, present: list[str], wall_s: float) -> list[str]:
        """From the oldest on; never the last."""
        oldest_day = of_day(wall_s - self._keep.days * DAY_S)
        sizes = {name: (self._directory / name).stat().st_size for name in present}
        total_bytes = sum(sizes.values())
        gone: list[str] = []
        for name in present[:-1]:
            if name[:10] >= oldest_day and total_bytes <= self._keep.total_bytes:
                break
            gone.append(name)
            total_bytes -= sizes[name]
        return gone

    def _read_head(self, keys: Collection[bytes], wall_s: float) -> ChainHead:
        path = self._directory / HEAD
        try:
            return decode_head(path.read_bytes(), keys)
        except FileNotFoundError:
            if not segment_names(self._directory):
                head = ChainHead()
                _replace(path, encode_head(head, self.signer))
                return head
            return self._without_head("there was none", wall_s)
        except BadChainHead as error:
            return self._without_head(str(error), wall_s)

    def _without_head(self, reason: str, wall_s: float) -> ChainHead:
        """Continue after the last whole line there is; a line says that it may not have been the last."""
        self._notes.append(AuditEntry(wall_s, "head_lost", {"reason": reason}))
        present = segment_names(self._directory)
        if not present:
            return ChainHead()
        data = (self._directory / present[-1]).read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        last = whole[:-1].rpartition(b"\n")[2]
        return ChainHead(_seq_of(last), hash_of(last) if whole else START, present[-1], len(whole))

    def _recover(self, wall_s: float) -> None:
        """Take over or cut off what lies beyond the head."""
        last = segment_order(self.head.segment)
        for name in [name for name in segment_names(self._directory) if segment_order(name) >= last]:
            begins = self.head.end_bytes if name == self.head.segment else 0
            with os.fdopen(os.open(self._directory / name, os.O_RDONLY | _NO_LINK), "rb") as file:
                file.seek(begins)
                beyond = file.read()
            if beyond:
                self._take_over(name, begins, beyond, wall_s)
            elif not begins:
                (self._directory / name).unlink()

    def _take_over(self, name: str, begins: int, beyond: bytes, wall_s: float) -> None:
        first, taken, used = self.head.seq + 1, list(self.head.taken), 0
        while (newline := beyond.find(b"\n", used)) >= 0:
            line = beyond[used:newline]
            record = _record_after(self.head, line)
            if record is None:
                break
            used = newline + 1
            if isinstance(record.get("act"), str):
                taken.append(record["act"])
            self.head = ChainHead(self.head.seq + 1, hash_of(line), name, begins + used, tuple(taken))
        rest = beyond[used:]
        facts = {"segment": name, "first": first, "lines": self.head.seq + 1 - first, "cut_bytes": len(rest)}
        if not rest:
            self._notes.append(AuditEntry(wall_s, "recovered", facts))
            return
        self._unreported.append(AuditEntry(wall_s, "recovered", facts | {"cut_hash": hash_of(rest)}))
        if begins + used:
            _truncate(self._directory / name, begins + used)
        else:
            (self._directory / name).unlink()

    def _begin_segment(self, wall_s: float) -> None:
        """A new one for a new day, and when the one there is has grown long."""
        head, day = self.head, of_day(wall_s)
        fits = head.end_bytes < self._keep.segment_bytes
        path = self._directory / head.segment
        whole = bool(head.segment) and path.exists() and path.stat().st_size == head.end_bytes
        if whole and fits and head.segment[:10] >= day:
            return
        name = next_segment_name(head.segment, day)
        facts = {"segment": name, "after": head.segment}
        self._notes.insert(0, AuditEntry(wall_s, "segment", facts))
        self.head = replace(head, segment=name, end_bytes=0)

    def _write(self, name: str, lines: bytes, at_bytes: int) -> None:
        path = self._directory / name
        is_new = not path.exists()
        with _opened(path, os.O_WRONLY | os.O_CREAT | _NO_LINK) as descriptor:
            os.lseek(descriptor, at_bytes, os.SEEK_SET)
            _write_all(descriptor, lines)
            os.fsync(descriptor)
        if is_new:
            _give_to_owner(path, self._directory)
            with _opened(self._directory, os.O_RDONLY) as descriptor:
                os.fsync(descriptor)


def _record_after(head: ChainHead, line: bytes) -> dict[str, Any] | None:
    """The record in ``line``; None where it does not follow ``head``."""
    try:
        record: dict[str, Any] = orjson.loads(line)
        return record if record["seq"] == head.seq + 1 and record["prev"] == head.hash else None
    except (ValueError, TypeError, KeyError):
        return None


def _last_time(path: Path, wall_s: float) -> float:
    """When the last whole line was written; ``wall_s`` if there is none that says it."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * LINE_BYTES))
        lines = file.read().rpartition(b"\n")[0].splitlines()
    try:
        return datetime.fromisoformat(orjson.loads(lines[-1])["at"]).timestamp()
    except (ValueError, TypeError, KeyError, IndexError):
        return wall_s


def _seq_of(line: bytes) -> int:
    try:
        seq = orjson.loads(line)["seq"]
    except (ValueError, TypeError, KeyError):
        return 0
    return seq if isinstance(seq, int) else 0


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A file's descriptor, closed afterwards."""
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _truncate(path: Path, end_bytes: int) -> None:
    with _opened(path, os.O_WRONLY | _NO_LINK) as descriptor:
        os.ftruncate(descriptor, end_bytes)


def _write_all(descriptor: int, data: bytes) -> None:
    """A disk that is nearly full takes a part, and says so only when it is given the rest."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _replace(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_LINK) as descriptor:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    _give_to_owner(temporary, path.parent)
    temporary.replace(path)


def _give_to_owner(path: Path, directory: Path) -> None:
    """What root makes in another's directory is given to that other: the gateway must open it."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        owner = directory.stat()
        if path.lstat().st_uid != owner.st_uid:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


@contextlib.contextmanager
def _foreign_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AuditUnwritable(
            f"cannot write the audit log in {directory} ({error.strerror}): see that its disk has room and "
            "that it belongs to the user that runs the gateway"
        ) from error
