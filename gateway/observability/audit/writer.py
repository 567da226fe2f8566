"""Writes the audit log of a running gateway, in batches, from a thread of its own.

What happens on the event loop is put into a bounded buffer, a request as its line but for number and hash;
the thread numbers, chains and syncs them every ``tick_s``. It also takes up what other processes noted in
the database.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway.domain.errors import StateUnavailable
from gateway.observability.audit.acts import (
    MOST_ACTS,
    AdminActionSource,
    append_entries,
    audit_files,
    prune,
)
from gateway.observability.audit.anchors import HeadAnchor
from gateway.observability.audit.files import DAY_S, AuditFiles, Retention
from gateway.observability.audit.records import AuditEntry, RequestFacts
from gateway.observability.audit.trusted_time import TrustedTime
from gateway.observability.audit.waiting_acts import WaitingActs
from gateway.observability.gauges import Family, single
from gateway.storage import Store
from gateway.storage.acts import ClaimedActions
from gateway.storage.errors import StateError

_log = structlog.get_logger(__name__)

REST_S = 0.001
"""How long the thread rests between two pieces of its work, each a fraction of a millisecond. In one go it
would keep the interpreter and the processor from loops, this process's and others', for milliseconds: what
wakes meanwhile may have to wait until the thread has used its slice."""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    buffer_records: int = 50_000
    """Not written yet."""
    batch_records: int = 1000
    """Made into lines at a time; between two the event loop gets its turn."""
    tick_s: float = 0.5
    """Between two writes; what a crash may lose."""
    prunes: bool = True
    """Deletes old segments; of several workers one does."""


class AuditWriter:
    """:meth:`add` belongs to the event loop; the rest of the work to the thread between start and stop."""

    def __init__(
        self,
        files: AuditFiles,
        acts: AdminActionSource,
        settings: AuditSettings = AuditSettings(),
        *,
        changed: Callable[[], object] = lambda: 0,
        anchor: HeadAnchor | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``changed`` gives another value once there may be acts: only then, and every minute, the database
        is asked for them. ``anchor`` tells the store of the log's head; ``clock`` is one that nobody
        sets."""
        self.settings = settings
        self.blocked = False
        """The last write failed, or the buffer is full."""
        self.dropped = 0
        """Records that found no room."""
        self.written = 0
        self._files = files
        self._acts = WaitingActs(acts, clock)
        self._changed = changed
        self._anchor = anchor
        self._version: object = None
        """What ``changed`` gave when all acts were last taken up; None: some may wait."""
        self._wall = wall
        self._clock = clock
        self._sleep = sleep
        self._trusted_time: TrustedTime | None = None
        """As of ``_looked_s``; None before anything is written, which may say a wrong time."""
        self._looked_s = 0.0
        self._buffer: deque[AuditEntry | bytes] = deque()
        self._batch: list[AuditEntry | bytes] = []
        """Taken from the buffer and not on the disk yet."""
        self._taken = 0
        """How many records were taken from the buffer."""
        self._reported = 0
        """How many of ``dropped`` a line reports."""
        self._pruned_s = float("-inf")
        self._failing = False
        self._wake = threading.Event()
        self._writing = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def add(self, record: AuditEntry | RequestFacts) -> None:
        """Take a record; the thread writes it. Never waits, never raises."""
        if len(self._buffer) < self.settings.buffer_records:
            self._buffer.append(record if isinstance(record, AuditEntry) else record.line())
        else:
            self.dropped += 1
            self.blocked = True

    def note(self, kind: str, who: str = "gateway", /, **facts: str | int | float | list[str] | None) -> None:
        """Somebody did something that the database does not know of."""
        self.add(AuditEntry(self._wall(), kind, {"who": who, **facts}))

    def check(self) -> None:
        """Raises StateUnavailable while the log cannot be written: for gateways where it is ``required``."""
        if self.blocked:
            raise StateUnavailable(
                "This gateway cannot write its audit log just now, and serves nobody without it; "
                "send the request again."
            )

    def figures(self) -> list[Family]:
        """What is exposed of it, for a :class:`gateway.observability.gauges.FamilyCollector`."""
        return [
            single("audit_records", "Lines of the audit log on the disk.", self.written, counter=True),
            single("audit_dropped", "Records that found no room and are lost.", self.dropped, counter=True),
            single("audit_blocked", "1 while the audit log cannot be written.", self.blocked),
        ]

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """Write what is left; returns when that is done, or after so long. The process's log tells how many
        records are lost then."""
        self._stopping = True
        self._wake.set()
        self._thread.join(within_s)
        if lost := len(self._buffer) + len(self._batch) + self.dropped - self._reported:
            _log.error("audit_lost", records=lost)

    def write(self) -> bool:
        """Write all that is there now, from any thread but the event loop's. False when it could not be;
        nothing is lost then but what finds no room."""
        with self._writing:
            if self._trusted_time is None:
                with contextlib.suppress(StateError):  # then nothing can be written, either
                    self._trusted_time, self._looked_s = self._files.trusted_time(self._wall()), self._clock()
            return self._write()

    def _write(self) -> bool:
        """What comes meanwhile is left for the next time: under load there is always something."""
        goal = self._taken + len(self._buffer)
        try:
            while self._write_batch() and self._taken < goal:
                pass
        except StateError as error:
            if not self._failing:
                _log.error("audit_not_written", error=str(error))
            self._failing = self.blocked = True
            return False
        if self._failing:
            _log.info("audit_written_again", dropped=self.dropped)
        self._failing = False
        self.blocked = len(self._buffer) >= self.settings.buffer_records
        return True

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self.settings.tick_s)
            try:
                if self.write():
                    self._note_head()
                    self._prune()
            except Exception:
                self.blocked = True
                _log.exception("audit_failed")
        with contextlib.suppress(Exception):
            self.write()
            self._note_head(at_once=True)

    def _note_head(self, *, at_once: bool = False) -> None:
        if self._anchor is not None:
            self._anchor.note(self._wall(), at_once=at_once)

    def _write_batch(self) -> bool:
        """Whether there is more to do."""
        version = None
        with contextlib.suppress(StateError):  # the log does not need the database for what is here already
            version = self._changed()
        self._acts.look_for(version)
        taken = min(self.settings.batch_records - len(self._batch), len(self._buffer))
        self._batch.extend(self._buffer.popleft() for _ in range(taken))
        self._taken += taken
        if not self._batch and version == self._version:
            return False
        dropped, entries = self.dropped, self._batch
        if dropped > self._reported:
            lost = AuditEntry(self._wall(), "lost", {"records": dropped - self._reported})
            entries = [lost, *self._batch]
        appended = (lambda head: None) if self._anchor is None else self._anchor.appended
        self._rest()
        written = append_entries(self._files, self._acts, self._wall(), entries, appended, self._rest)
        self.written += written
        more_acts = written - len(entries) >= MOST_ACTS  # as many as are taken up at a time
        self._reported, self._version = dropped, None if more_acts else version
        self._batch.clear()
        return bool(self._buffer)

    def _rest(self) -> None:
        if not self._stopping:
            self._sleep(REST_S)

    def _prune(self) -> None:
        """Delete old segments, once an hour, by the time of day that is believed."""
        now_s = self._clock()
        if not self.settings.prunes or self._trusted_time is None or now_s - self._pruned_s < DAY_S / 24:
            return
        before = self._trusted_time
        self._trusted_time = before.after(now_s - self._looked_s, self._wall())
        self._looked_s = now_s
        if self._trusted_time.ahead_s and not before.ahead_s:
            _log.warning("audit_clock_ahead", ahead_s=int(self._trusted_time.ahead_s))
        try:
            self._files.save_trusted_time(self._trusted_time)
            if gone := prune(self._files, self._acts, self._trusted_time.time_s):
                _log.info("audit_pruned", segments=len(gone))
        except StateError as error:
            _log.error("audit_not_pruned", error=str(error))
        self._pruned_s = now_s


def audit_writer(
    store: Store, settings: AuditSettings, keep: Retention, owns: Callable[[], bool] = lambda: True
) -> AuditWriter:
    """For a gateway. ``owns`` says whether it is this one of several that takes acts up."""
    files = audit_files(store, keep)
    anchor = HeadAnchor(store.audit_heads, store.audit_chain, files.directory, clock=time.monotonic)
    if not store.is_shared or store.process_name is None:
        return AuditWriter(files, store.acts, settings, changed=store.changes.read, anchor=anchor)
    acts = ClaimedActions(store.acts, store.process_name, owns)
    return AuditWriter(files, acts, settings, changed=lambda: (store.changes.read(), owns()), anchor=anchor)
