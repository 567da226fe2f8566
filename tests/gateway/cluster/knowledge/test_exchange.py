"""What one process tells reaches the others once, and nothing is told where there is nobody."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from gateway.cluster.knowledge.exchange import SPEEDS_S, Draft, KnowledgeExchange
from gateway.domain.request import Tier
from gateway.scheduling.health import GivenHints
from gateway.scheduling.learning import regression
from gateway.scheduling.queue.foreign import WorkKey
from gateway.storage import Store
from gateway.storage.processes import ProcessRecord
from tests.gateway.scheduling.learning.test_shared import Process as Learning
from tests.support.clock import ManualClock

A: WorkKey = ("llama", Tier.STANDARD, "a")


class Queues:
    def __init__(self) -> None:
        self.told = False
        self.given: dict[WorkKey, float] = {}
        self.heard: list[dict[WorkKey, float]] = []

    def tell(self, told: bool) -> None:
        self.told = told

    def take_given(self) -> dict[WorkKey, float]:
        assert self.told
        given, self.given = self.given, {}
        return given

    def note_elsewhere(self, given: Mapping[WorkKey, float], now: float) -> None:
        if given:
            self.heard.append(dict(given))


class Health:
    def __init__(self) -> None:
        self.hints = GivenHints()
        self.suspects: list[str] = []

    def suspect(self, keys: Iterable[str]) -> None:
        self.suspects += keys


class Process:
    """Beats as a member does."""

    def __init__(self, store: Store, name: str, incarnation: int = 1) -> None:
        self.store, self.clock, self.queues = store, ManualClock(), Queues()
        self.record = ProcessRecord(name, incarnation, None, "host", "1", 0.0)
        self.exchange = KnowledgeExchange(name, incarnation, self.clock)
        self.alone = True
        self.beat()
        self.learnt = Learning(name, incarnation)
        self.health = Health()
        self.exchange.attach(self.queues, self.learnt.performance, self.health)

    def beat(self) -> Draft | None:
        """What was told with it."""
        told = self.exchange.gather(not self.alone)
        knowledge = None if told is None else self.exchange.write(told)
        report = self.store.processes.beat(replace(self.record, knowledge=knowledge))
        self.alone = len(report.records) < 2
        self.exchange.take_up(self.exchange.read(report, self.store.processes), report)
        return told

    def text(self) -> str | None:
        return self.store.processes.knowledge([self.record.id], 10**6).get(self.record.id)

    def write(self, text: str) -> None:
        self.store.processes.beat(replace(self.record, knowledge=text))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


def pair(store: Store) -> tuple[Process, Process]:
    first, second = Process(store, "g1"), Process(store, "g2")
    for each in (first, second, first, second):
        each.beat()
    return first, second


def test_a_process_that_is_alone_tells_and_records_nothing(store: Store) -> None:
    alone = Process(store, "g1")
    for _ in range(3):
        assert alone.beat() is None
    assert alone.text() is None
    assert not alone.queues.told


def test_work_reaches_the_others_once(store: Store) -> None:
    first, second = pair(store)
    first.queues.given = {A: 5.0}
    for each in (first, second, second, first, second):
        each.beat()
    assert second.queues.heard == [{A: 5.0}]
    assert first.queues.heard == []


def test_a_document_is_written_only_when_it_says_something_new(store: Store) -> None:
    first, _ = pair(store)
    assert first.beat() is None
    first.queues.given = {A: 5.0}
    assert first.beat() is not None
    assert first.beat() is None


def test_a_document_that_may_not_have_been_written_is_told_again(store: Store) -> None:
    first, second = pair(store)
    first.queues.given = {A: 5.0}
    assert first.exchange.gather(True) is not None, "and then the store fails"
    first.beat()
    second.beat()
    assert second.queues.heard == [{A: 5.0}]


def test_who_starts_later_takes_up_no_work_of_before(store: Store) -> None:
    first, _ = pair(store)
    first.queues.given = {A: 5.0}
    first.beat()
    third = Process(store, "g3")
    third.beat()
    assert third.queues.heard == []
    first.queues.given = {A: 2.0}
    first.beat()
    third.beat()
    assert third.queues.heard == [{A: 2.0}]


def test_of_a_process_that_starts_again_the_former_document_is_no_news(store: Store) -> None:
    first, second = pair(store)
    first.queues.given = {A: 5.0}
    first.beat()
    second.beat()
    again = Process(store, "g1", incarnation=2)
    second.beat()
    again.beat()
    again.queues.given = {A: 1.0}
    again.beat()
    second.beat()
    assert second.queues.heard == [{A: 5.0}, {A: 1.0}]


def test_alone_again_it_records_nothing(store: Store) -> None:
    first, second = pair(store)
    assert first.queues.told
    store.processes.leave("g2", 1)
    first.beat()
    first.beat()
    assert not first.queues.told
    assert second.queues.told


def test_garbage_is_skipped_and_logged_once(store: Store) -> None:
    first, second = pair(store)
    with structlog.testing.capture_logs() as logs:
        for number in range(3):
            first.write(f'{{"version":9,"number":{number},"x":[]')
            second.beat()
    assert [(log["event"], log["process"]) for log in logs] == [("knowledge_unreadable", "g1")]
    first.queues.given = {A: 5.0}
    first.beat()
    second.beat()
    assert second.queues.heard == [{A: 5.0}], "and what is right later counts"


def test_a_process_that_tells_nothing_is_silent(store: Store) -> None:
    _, second = pair(store)
    store.processes.beat(ProcessRecord("old", 1, None, "host", "0.9", 0.0))
    second.beat()
    assert second.queues.heard == []
    assert {labels for family in second.exchange.figures() for labels in family.values} == {("g1",)}


def test_how_long_ago_each_told_something_is_a_metric(store: Store) -> None:
    first, second = pair(store)
    first.queues.given = {A: 5.0}
    first.beat()
    second.beat()
    second.clock.advance(7.0)
    second.beat()
    (ages,) = second.exchange.figures()
    assert ages.values == {("g1",): 7.0}
    assert second.exchange.ages_s() == {"g1": 7.0}
    assert "process" not in ages.labels, "which workers put before all series"


def test_speeds_reach_the_others_and_one_that_starts_knows_them_at_once(store: Store) -> None:
    first, second = pair(store)
    first.learnt.serve(100, 10.0)
    first.clock.advance(SPEEDS_S)
    first.beat()
    assert second.learnt.step_s() != pytest.approx(first.learnt.step_s(), rel=0.3)
    second.beat()
    assert second.learnt.step_s() == pytest.approx(first.learnt.step_s(), rel=0.05)
    third = Process(store, "g3")
    assert third.learnt.step_s() == pytest.approx(first.learnt.step_s(), rel=0.05), "before its first request"


def test_one_that_is_killed_and_started_again_knows_from_its_own_row_what_it_knew(store: Store) -> None:
    first, _ = pair(store)
    first.learnt.serve(100, 10.0)
    first.clock.advance(SPEEDS_S)
    first.beat()
    again = Process(store, "g1", incarnation=2)
    assert again.learnt.step_s() == pytest.approx(first.learnt.step_s(), rel=0.05)


def test_one_that_was_stopped_and_started_again_knows_it_from_the_others(store: Store) -> None:
    first, second = pair(store)
    first.learnt.serve(100, 10.0)
    first.clock.advance(SPEEDS_S)
    first.beat()
    second.beat()
    second.clock.advance(SPEEDS_S)
    second.beat()
    store.processes.leave("g1", 1)
    again = Process(store, "g1", incarnation=2)
    assert again.learnt.step_s() == pytest.approx(first.learnt.step_s(), rel=0.05)


def test_what_learnt_nothing_since_is_not_checked_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair(store)
    first.learnt.serve(10, 10.0)
    first.clock.advance(SPEEDS_S)
    first.beat()
    second.beat()
    monkeypatch.setattr(regression, "ShareRegression", None)
    first.queues.given = {A: 1.0}
    first.beat()
    second.beat()
    assert second.queues.heard == [{A: 1.0}]


def test_a_suspect_is_told_once_and_not_to_those_who_come_later(store: Store) -> None:
    first, second = pair(store)
    first.health.hints.add("gpu-1/llama", "status", first.clock())
    for each in (first, second, first, second):
        each.beat()
    assert second.health.suspects == ["gpu-1/llama"]
    assert first.health.suspects == []
    third = Process(store, "g3")
    third.beat()
    assert third.health.suspects == []
    first.health.hints.add("gpu-1/llama", "status", first.clock())
    for each in (first, second, third):
        each.beat()
    assert second.health.suspects == ["gpu-1/llama"] * 2
    assert third.health.suspects == ["gpu-1/llama"]
