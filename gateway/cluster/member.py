"""This process among those of its gateway: writes its row, reads the others', and claims what one may do.

Belongs to the event loop's thread; what waits for the store runs in a thread of its own, so that nothing else
that waits for it delays a sign of life.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import structlog

from gateway.cluster.directory import BEAT_S, ProcessDirectory
from gateway.cluster.knowledge.exchange import Draft, Heard, KnowledgeExchange
from gateway.cluster.ownership import LEADER, TTL_S, LeasedOwnership
from gateway.cluster.placement_demands import PlacementDemands
from gateway.domain.running_clock import running_s
from gateway.observability.gauges import Family
from gateway.storage.errors import StateError
from gateway.storage.ownership import OwnershipClaim, OwnershipLease, OwnershipStore
from gateway.storage.processes import ProcessRecord, ProcessReport, ProcessStore

_log = structlog.get_logger(__name__)

SWEEP_BEATS = 600
"""Rows of processes that are long gone are deleted at every so manieth beat, and at the first."""


@dataclass(frozen=True, slots=True)
class _Beat:
    report: ProcessReport
    lease: OwnershipLease | None
    """As the store answered what was asked at ``asked_s``; None: it was not asked."""
    asked_s: float
    heard: Sequence[Heard]


class ClusterMember:
    """Of a gateway whose processes share a store."""

    def __init__(
        self,
        record: ProcessRecord,
        directory: ProcessDirectory,
        processes: ProcessStore,
        leases: OwnershipStore,
        demands: PlacementDemands,
        *,
        clock: Callable[[], float] = running_s,
        wall: Callable[[], float] = time.time,
        beat_s: float = BEAT_S,
        knowledge: KnowledgeExchange | None = None,
    ) -> None:
        """``clock`` is one that goes on while the host sleeps, ``wall`` gives Unix time, of which epochs are
        made. ``knowledge`` is what is told beside; None: nothing."""
        self.directory = directory
        self.ownership = LeasedOwnership(record.id, record.incarnation, clock)
        self._record = record
        self._processes = processes
        self._leases = leases
        self._demands = demands
        self._knowledge = knowledge
        demands.wake = self._wake_up
        self._clock = clock
        self._wall = wall
        self._beat_s = beat_s
        self._beats = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="member")
        self._wake = asyncio.Event()
        self._stopped = False
        self._candidate = True
        self._gave_back = False
        """The lease, if there was one, once this process is no candidate any more."""
        self._report: ProcessReport | None = None
        self._reported_s = 0.0
        self._failing = self._superseded = self._owned = False

    @property
    def name(self) -> str:
        """What this process is called."""
        return self._record.id

    @property
    def rows(self) -> Sequence[ProcessRecord]:
        """All rows there were when they were read last."""
        return () if self._report is None else self._report.records

    def store_s(self) -> float:
        """Seconds of the store's clock, as it goes on since it was read last; only after :meth:`begin`."""
        assert self._report is not None
        return self._report.now + self._clock() - self._reported_s

    def known_s(self) -> float:
        """For how many seconds the others' rows have not been read; only after :meth:`begin`."""
        return max(0.0, self._clock() - self._reported_s)

    def figures(self) -> list[Family]:
        """For metrics."""
        says = "How long ago this process read last what the others of the gateway say in the store."
        return [Family("processes_age_seconds", says, [], {(): self.known_s()})]

    def begin(self) -> None:
        """Be known to the others before agents come; waits for the store. Raises StateError."""
        self._take_up(self._beat(None, None))

    async def run(self) -> None:
        """Runs until :meth:`stop`; then takes the row away and gives back what is owned."""
        loop = asyncio.get_running_loop()
        while not self._stopped:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._beat_s)
            self._wake.clear()
            if self._stopped:
                break
            try:
                wanted = self._demands.encode()
                told = self._gather()
                self._take_up(await loop.run_in_executor(self._thread, self._beat, wanted, told))
            except StateError as error:
                self._failed(error)
        self.ownership.end()
        try:
            await loop.run_in_executor(self._thread, self._leave)
        except StateError as error:
            _log.warning("process_row_stays", error=str(error))
        self._thread.shutdown(wait=False)

    def resign(self) -> None:
        """Own nothing from now on: this process is about to stop. Another one takes it soon, for it is given
        back at once. Does not wait for the store."""
        self._candidate = False
        self.ownership.end()
        self._wake.set()

    def stop(self) -> None:
        """The process stops."""
        self._candidate = False
        self._stopped = True
        self._wake.set()

    def _gather(self) -> Draft | None:
        return None if self._knowledge is None else self._knowledge.gather(self.directory.accompanied)

    def _wake_up(self) -> None:
        self._wake.set()

    def _beat(self, wanted: str | None, told: Draft | None) -> "_Beat":
        """In a thread. Raises StateError."""
        knowledge = None if told is None or self._knowledge is None else self._knowledge.write(told)
        record = replace(self._record, wanted=wanted, knowledge=knowledge)
        report = self._processes.beat(record, sweep=self._beats % SWEEP_BEATS == 0)
        self._beats += 1
        asked_s, lease = self._clock(), None
        if not self._candidate and not self._gave_back:
            self._release()
            self._gave_back = True
        if self._candidate and not report.superseded:
            least = int(self._wall())
            lease = self._leases.claim(
                OwnershipClaim(LEADER, record.id, record.incarnation, TTL_S, least_epoch=least)
            )
        heard = [] if self._knowledge is None else self._knowledge.read(report, self._processes)
        return _Beat(report, lease, asked_s, heard)

    def _leave(self) -> None:
        """In a thread. Raises StateError."""
        self._release()
        self._processes.leave(self._record.id, self._record.incarnation)

    def _release(self) -> None:
        self._leases.release(LEADER, self._record.id, self._record.incarnation)

    def _take_up(self, beat: "_Beat") -> None:
        report = beat.report
        if self._failing:
            _log.info("processes_known_again", processes=self.directory.count)
        self._failing = False
        if report.superseded and not self._superseded:
            _log.error(
                "process_name_taken",
                process=self._record.id,
                what="another process of this gateway runs under the same name: give each a state directory "
                "of its own, or names with cluster.process",
            )
        self._superseded = report.superseded
        if report.superseded:
            self.ownership.end()
        elif self._candidate:
            self.ownership.answered(beat.lease, beat.asked_s)
        if self.ownership.owns != self._owned:
            self._owned = self.ownership.owns
            _log.info("leader" if self._owned else "leader_no_more", epoch=self.ownership.epoch)
            self._demands.changed()
        self._report, self._reported_s = report, self._clock()
        self.directory.update(report, self._reported_s)
        others = [each.wanted for each in report.records if self.directory.is_there(each.id)]
        self._demands.take_up(others)
        if self._knowledge is not None:
            self._knowledge.take_up(beat.heard, report)

    def _failed(self, error: StateError) -> None:
        if not self._failing:
            _log.error("processes_unknown", error=str(error), what="those known last are taken to be there")
        self._failing = True
