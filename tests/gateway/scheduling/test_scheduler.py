"""The scheduler of all models: it keeps what policies choose by, and learns."""

import pytest

from gateway.scheduling import scheduler as module
from gateway.scheduling.base import Assignment, DeploymentView, Outcome
from gateway.scheduling.learning.performance import FAMILIAR, LEARN_EVERY_S, Performance
from gateway.scheduling.scheduler import Scheduler
from tests.gateway.scheduling.views import H100, request, view


def served(scheduler: Scheduler, each: DeploymentView, number: int, now: float, total_s: float) -> None:
    item = request(number, 1000, 100)
    scheduler.placed(item, each, now)
    each.in_flight += 1
    scheduler.first_token(number, each, now + 0.1)
    each.in_flight -= 1
    scheduler.finished(number, each, Outcome(True, total_s, 0.1, 1000, 100, 0), now + total_s)


def test_outcomes_teach_the_speeds_of_the_model_on_its_device() -> None:
    scheduler, each = Scheduler(), view("a")
    scheduler.deployment_added(each, 0.0)
    first = scheduler.placed(request(1), each, 0.0)
    scheduler.finished(1, each, Outcome(False, 0.1), 0.1)
    for number in range(2, 60):
        served(scheduler, each, number, number * 10.0, 5.0)
    taught = scheduler.placed(request(100), each, 1000.0)
    assert taught.total_s == pytest.approx(5.0, rel=0.1)
    assert first.total_s < 2.0
    (speeds,) = scheduler.performance
    assert (speeds.model, speeds.device) == ("m", "h100")
    assert speeds.accuracy.total.count == 58


def test_one_that_is_slower_than_its_fellows_is_known_for_it() -> None:
    scheduler, good, bad = Scheduler(), view("bad-luck"), view("all-well")
    for each in (good, bad):
        scheduler.deployment_added(each, 0.0)
    for number in range(200):
        each, total_s = ((good, 2.0), (bad, 4.0))[number % 2]
        served(scheduler, each, number, number * 10.0, total_s)
    assert bad.load.writing_pace > 1.3 * good.load.writing_pace
    assert scheduler.assign("m", [request(999)], [good, bad], 9999.0) == [Assignment(999, good.key)]


def test_one_that_reads_and_writes_slower_than_its_fellows_is_expected_to() -> None:
    scheduler, fast, slow = Scheduler(), view("fast"), view("slow")
    for each in (fast, slow):
        scheduler.deployment_added(each, 0.0)
    for number in range(400):
        each, slowness = ((fast, 1.0), (slow, 4.0))[number % 2]
        now, first_s, total_s = number * 10.0, 0.5 * slowness, 1.5 * slowness
        scheduler.placed(request(number, 4000, 100), each, now)
        scheduler.finished(number, each, Outcome(True, total_s, first_s, 4000, 100, 0), now + total_s)
    quick, slowly = (scheduler.placed(request(999, 4000, 100), each, 9999.0) for each in (fast, slow))
    assert slowly.first_token_s == pytest.approx(4.0 * quick.first_token_s, rel=0.15)
    assert slowly.total_s == pytest.approx(4.0 * quick.total_s, rel=0.15)
    assert slow.load.wait_s(9999.0) == pytest.approx(4.0 * fast.load.wait_s(9999.0), rel=0.15)
    behind = scheduler.placed(request(1000, 4000, 100), slow, 9999.0)
    assert behind.first_token_s == pytest.approx(slowly.first_token_s + slowly.read_s)


def test_an_answer_that_waited_for_its_model_to_load_teaches_no_speed() -> None:
    scheduler, each = Scheduler(), view("a")
    each.loaded = False
    scheduler.deployment_added(each, 0.0)
    asked = scheduler.placed(request(1), each, 0.0)
    each.loaded = True
    scheduler.loaded(each, 60.0)
    scheduler.finished(1, each, Outcome(True, 62.0, 60.5, 1000, 100), 62.0)
    (speeds,) = scheduler.performance
    assert asked.first_token_s > 30.0
    assert speeds.load_s == 60.0
    assert speeds.reading.count == speeds.accuracy.total.count == 0


def test_the_policy_of_a_model_can_be_changed_while_it_is_served() -> None:
    scheduler, views = Scheduler("cost"), [view("a", 8), view("b", 8)]
    for each in views:
        scheduler.deployment_added(each, 0.0)
    chain = tuple(range(40))
    scheduler.placed(request(1, 10_240, prefix=chain), views[1], 0.0)
    scheduler.choose_policies("cost", {"m": "round-robin"})
    assert (scheduler.policy_of("m"), scheduler.policy_of("other")) == ("round-robin", "cost")
    assert scheduler.assign("m", [request(2, 10_240, prefix=chain)], views, 1.0)[0].key == "a"
    scheduler.choose_policies("cost", {})
    assert scheduler.assign("m", [request(3, 10_240, prefix=chain)], views, 99.0)[0].key == "b"
    with pytest.raises(ValueError, match="round-robin"):
        scheduler.choose_policies("cost", {"m": "best"})
    assert scheduler.policy_of("m") == "cost"
    with pytest.raises(ValueError, match="cost"):
        Scheduler("best")


def test_what_ends_after_its_deployment_is_gone_does_no_harm() -> None:
    scheduler, each = Scheduler(), view("a")
    scheduler.deployment_added(each, 0.0)
    scheduler.placed(request(1), each, 0.0)
    scheduler.deployment_removed(each, 1.0)
    scheduler.deployment_removed(each, 1.0)
    scheduler.finished(1, each, Outcome(False, 2.0), 2.0)
    scheduler.finished(1, each, Outcome(False, 2.0), 2.0)
    assert each.load.count == 0
    again = view("a")
    scheduler.deployment_added(again, 3.0)
    scheduler.deployment_removed(each, 4.0)
    assert scheduler.assign("m", [request(2)], [again], 5.0) == [Assignment(2, "a")]


def test_a_second_copy_of_a_request_is_kept_apart_from_the_first() -> None:
    scheduler, views = Scheduler(), [view("a"), view("b")]
    for each in views:
        scheduler.deployment_added(each, 0.0)
        scheduler.placed(request(1), each, 0.0)
    scheduler.finished(1, views[0], Outcome(False, 1.0), 1.0)
    assert [each.load.count for each in views] == [0, 1]


def test_performance_can_be_shared() -> None:
    performance = Performance()
    for number in range(20):
        scheduler, each = Scheduler(performance=performance), view("a")
        scheduler.deployment_added(each, 0.0)
        served(scheduler, each, number, 0.0, 5.0)
    assert performance.speeds("m", H100).accuracy.total.count == 20


def test_models_that_nothing_serves_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MODELS", 10)
    scheduler, each = Scheduler(), view("a")
    scheduler.deployment_added(each, 0.0)
    for number in range(30):
        scheduler.assign(f"model {number}", [], [], 0.0)
    assert len(scheduler.models) == 10
    assert "m" in scheduler.models


def test_a_forgotten_model_keeps_the_policy_that_was_chosen_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MODELS", 2)
    scheduler = Scheduler("cost")
    scheduler.choose_policies("cost", {"model 0": "least-outstanding"})
    for number in range(4):
        scheduler.assign(f"model {number}", [], [], 0.0)
    assert "model 0" not in scheduler.models
    assert scheduler.policy_of("model 0") == "least-outstanding"


def test_where_hundreds_are_answered_in_a_second_some_of_them_teach() -> None:
    scheduler, each = Scheduler(), view("a")
    scheduler.deployment_added(each, 0.0)
    for number in range(FAMILIAR + 1000):
        served(scheduler, each, number, number * 0.001, 0.0005)
    (speeds,) = scheduler.performance
    assert FAMILIAR + 1000 * 0.001 / LEARN_EVERY_S * 0.8 < speeds.accuracy.total.count < FAMILIAR + 100
    for number in range(5000, 5100):
        served(scheduler, each, number, number * 1.0, 0.5)
    assert speeds.accuracy.total.count > FAMILIAR + 140, "where few come each one teaches"


def test_the_way_to_a_deployment_is_its_own_and_teaches_nothing_of_its_class() -> None:
    scheduler, near, far = Scheduler(), view("near"), view("far")
    far.rtt_s = 0.4
    for each in (near, far):
        scheduler.deployment_added(each, 0.0)
    for number in range(200):
        each, total_s = ((near, 2.0), (far, 2.4))[number % 2]
        now = number * 10.0
        scheduler.placed(request(number, 1000, 100), each, now)
        outcome = Outcome(True, total_s, 0.1 + each.rtt_s, 1000, 100, 0)
        scheduler.finished(number, each, outcome, now + total_s)
    assert far.load.reading_pace == pytest.approx(near.load.reading_pace, rel=0.02)
    assert scheduler.placed(request(999), near, 9999.0).total_s == pytest.approx(2.0, rel=0.1)
