"""Tells the others what this process has learnt, and takes up what they tell, with the beats of their rows.

What is told is put together on the event loop, a copy of little; it is written, read and checked in the
member's thread. While no other process is there nothing is told and nothing is recorded. A document is
written when it says something new, and read when its head is another one than before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

import structlog

from gateway.cluster.knowledge.document import (
    MOST_BYTES,
    Told,
    ToldSpeeds,
    ToldSuspect,
    UnreadableKnowledge,
    encode,
    read,
)
from gateway.cluster.knowledge.speeds import evidence_of, told_evidence
from gateway.cluster.knowledge.work import GivenWork, HeardWork
from gateway.observability.gauges import Family
from gateway.scheduling.health import GivenHints, HeardHints, SuspectHint
from gateway.scheduling.learning.performance import Performance
from gateway.scheduling.learning.shared import SharedSpeeds, SpeedEvidence
from gateway.scheduling.queue.foreign import WorkKey
from gateway.storage.processes import ProcessReport, ProcessStore

_log = structlog.get_logger(__name__)

SPEEDS_S = 10.0
"""Between two times that learnt speeds are told: they change slowly."""

AT_ONCE = 32
"""Pairs of model and device class whose speeds are taken up with one beat."""


class SharedQueues(Protocol):
    """:class:`gateway.scheduling.queue.waiting_room.WaitingRoom`."""

    def tell(self, told: bool) -> None: ...
    def take_given(self) -> dict[WorkKey, float]: ...
    def note_elsewhere(self, given: Mapping[WorkKey, float], now: float) -> None: ...


class SharedHealth(Protocol):
    """:class:`gateway.fleet.health.FleetHealth`."""

    hints: GivenHints

    def suspect(self, keys: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be told; the speeds as they are kept."""

    told: Told
    speeds: Sequence[SpeedEvidence]


@dataclass(frozen=True, slots=True)
class Heard:
    """What another process tells, as it was read."""

    process: str
    told: Told
    speeds: Sequence[SpeedEvidence]
    current: bool
    """The process that runs now tells it, not one that ran before under its name."""


class KnowledgeExchange:
    """Belongs to the event loop's thread but for :meth:`write` and :meth:`read`, which have what they use for
    themselves. ``clock`` gives seconds, on the clock of the queues."""

    def __init__(self, process: str, incarnation: int, clock: Callable[[], float]) -> None:
        self._process, self._incarnation, self._clock = process, incarnation, clock
        self._queues: SharedQueues | None = None
        self._health: SharedHealth | None = None
        self._telling = False
        self._number = 0
        self._latest: Draft | None = None
        """What was told last, as far as it is known that it was written."""
        self._pending: Draft | None = None
        self._shared: SharedSpeeds | None = None
        self._speeds: Sequence[SpeedEvidence] = ()
        """As they were told last, at ``_speeds_s``."""
        self._speeds_s = -inf
        self._early: list[SpeedEvidence] = []
        """Heard before anybody could take it up."""
        self._present: Mapping[str, int] = {}
        """Incarnations of the processes that have rows."""
        self._given, self._heard_work, self._heard_hints = GivenWork(), HeardWork(), HeardHints()
        self._begun = False
        """What others told before this process began was read."""
        self._told_s: dict[str, float] = {}
        """When each of the others told something last."""
        self._heads: dict[str, str] | None = None
        self._unreadable: set[str] = set()
        self._read_speeds: dict[str, Sequence[ToldSpeeds]] = {}
        """Of the thread: the heads of what was read (None: nothing yet), who could not be read, and the
        speeds that each told last."""

    def attach(self, queues: SharedQueues, performance: Performance, health: SharedHealth) -> None:
        """Those who have something to tell, and take up what is told and what was heard before."""
        self._queues, self._health = queues, health
        queues.tell(self._telling)
        self._shared = SharedSpeeds(performance, self._process, self._incarnation)
        self._shared.take_up(self._early)
        self._shared.apply()
        self._early.clear()

    # --- What is told ---

    def gather(self, accompanied: bool) -> Draft | None:
        """What is to be told now; None: nothing new. ``accompanied``: there are others."""
        queues, shared, health, now = self._queues, self._shared, self._health, self._clock()
        if queues is None or shared is None or health is None:
            return None
        if accompanied != self._telling:
            self._telling = accompanied
            queues.tell(accompanied)
            self._latest, self._speeds_s = None, -inf
        if not accompanied:
            return None
        self._given.add(queues.take_given())
        if now - self._speeds_s >= SPEEDS_S:
            self._speeds, self._speeds_s = shared.told(self._present), now
        suspects = [ToldSuspect(hint.number, hint.key, hint.reason) for hint in health.hints.told(now)]
        told = Told(self._incarnation, self._number, self._given.told(), suspects=suspects)
        draft = Draft(told, self._speeds)
        if draft == self._latest:
            return None
        self._number += 1
        self._pending = self._numbered(draft)
        return self._pending

    def _numbered(self, draft: Draft) -> Draft:
        return replace(draft, told=replace(draft.told, number=self._number))

    # --- In the member's thread ---

    def write(self, draft: Draft) -> str:
        """The document."""
        return encode(replace(draft.told, speeds=list(map(told_evidence, draft.speeds))))

    def read(self, report: ProcessReport, store: ProcessStore) -> list[Heard]:
        """What others tell that was not read before, and at first what this process told when it ran before.
        Raises StateError."""
        incarnations = {record.id: record.incarnation for record in report.records}
        before, heads = self._heads, dict(report.heads)
        if before is not None:
            heads.pop(self._process, None)
        new = [name for name, head in heads.items() if before is None or before.get(name) != head]
        texts = store.knowledge(new, MOST_BYTES + 1) if new else {}
        self._heads = heads
        heard: list[Heard] = []
        for name, text in texts.items():
            told = self._read_one(name, text)
            if told is not None:
                current = told.incarnation == incarnations.get(name)
                heard.append(Heard(name, told, self._new_speeds(name, told, incarnations), current))
        self._read_speeds = {name: each for name, each in self._read_speeds.items() if name in heads}
        return heard

    def _new_speeds(self, process: str, told: Told, present: Mapping[str, int]) -> list[SpeedEvidence]:
        """To check evidence takes longer than to see that it is the same as before."""
        before, self._read_speeds[process] = self._read_speeds.get(process, ()), told.speeds
        new = [each for each in told.speeds if each not in before]
        return evidence_of(process, replace(told, speeds=new), present)

    def _read_one(self, process: str, text: str) -> Told | None:
        try:
            told = read(text)
        except UnreadableKnowledge as error:
            self._complain(process, str(error))
            return None
        if told.unread:
            self._complain(process, told.unread[0])
        else:
            self._unreadable.discard(process)
        return told

    def _complain(self, process: str, reason: str) -> None:
        if process not in self._unreadable:
            self._unreadable.add(process)
            _log.warning("knowledge_unreadable", process=process, reason=reason)

    # --- What is taken up ---

    def take_up(self, heard: Sequence[Heard], report: ProcessReport) -> None:
        """The beat has come through: what was to be told is told, and this was heard."""
        if self._pending is not None:
            self._latest, self._pending = self._pending, None
        now = self._clock()
        present = {record.id: record.incarnation for record in report.records}
        if present != self._present:
            self._present, self._speeds_s = present, -inf
        self._told_s = {name: at_s for name, at_s in self._told_s.items() if name in present}
        self._heard_work.forget_all_but(present)
        self._heard_hints.forget_all_but(present)
        given: dict[WorkKey, float] = {}
        suspects: dict[str, None] = {}
        for each in heard:
            self._take_up_speeds(each.speeds)
            if each.current and each.process != self._process:
                self._told_s[each.process] = now
                by, told = (each.process, each.told.incarnation), each.told
                for key, work in self._heard_work.enter(*by, told.work).items():
                    given[key] = given.get(key, 0.0) + work
                hints = (SuspectHint(hint.number, hint.key, hint.reason) for hint in told.suspects)
                suspects |= {hint.key: None for hint in self._heard_hints.new(*by, hints)}
        if self._begun and self._queues is not None and self._health is not None:
            self._queues.note_elsewhere(given, now)
            self._health.suspect(suspects)
        self._begun = True
        if self._shared is not None:
            self._shared.apply(AT_ONCE)

    def _take_up_speeds(self, speeds: Sequence[SpeedEvidence]) -> None:
        if self._shared is None:
            self._early += speeds
        else:
            self._shared.take_up(speeds)

    def ages_s(self) -> dict[str, float]:
        """For how many seconds each of the others has told nothing new, by process."""
        now = self._clock()
        return {name: max(0.0, now - at_s) for name, at_s in self._told_s.items()}

    def figures(self) -> list[Family]:
        """For metrics."""
        ages: dict[tuple[str, ...], float] = {(name,): age_s for name, age_s in self.ages_s().items()}
        return [
            Family(
                "knowledge_age_seconds",
                "Since when each other process of the gateway has told nothing new.",
                ["peer"],
                ages,
            )
        ]
