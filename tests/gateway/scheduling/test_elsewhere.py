"""What an agent says that it runs for other processes counts as load and as prompts that were read."""

import pytest

from gateway.scheduling.base import Assignment, DeploymentView
from gateway.scheduling.elsewhere import RequestsElsewhere
from gateway.scheduling.scheduler import Scheduler
from shared.protocol import limits
from shared.protocol.errors import UnexpectedFrame
from shared.protocol.others import Expected, OtherRequest, Others
from tests.gateway.scheduling.views import request, view

CHAIN = tuple(range(1000, 1016))


class Process:
    """A process of a gateway with two deployments, and what their agents tell it."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.views = {"a": view("a"), "b": view("b")}
        for each in self.views.values():
            self.scheduler.deployment_added(each, 0.0)
        self.kv: list[tuple[str, int]] = []
        self.elsewhere = RequestsElsewhere(
            self.scheduler,
            placed=lambda each, tokens: self.kv.append((each.key, tokens)),
            ended=lambda each, tokens: self.kv.append((each.key, -tokens)),
        )

    def take(self, others: Others, now: float = 0.0) -> set[str]:
        return self.elsewhere.take(others, self.views.get, now)

    def began(
        self, number: int, key: str = "a", *, read: bool = False, chain: tuple[int, ...] = ()
    ) -> Others:
        return Others((OtherRequest(number, key, 0.0, read, Expected.of(20_000, 500, chain)),))

    def choice(self, now: float, chain: tuple[int, ...] = ()) -> list[Assignment]:
        views: list[DeploymentView] = list(self.views.values())
        return self.scheduler.assign("m", [request(1, 5000, 100, prefix=chain)], views, now)


def test_a_request_goes_where_no_other_process_has_one() -> None:
    process = Process()
    assert process.choice(0.0) == [Assignment(1, "a")]
    process.take(process.began(7))
    load = process.views["a"].load
    assert (load.count, load.kv_tokens) == (1, 20_500)
    assert load.ready_s > 0.5
    assert process.choice(0.0) == [Assignment(1, "b")]


def test_a_request_goes_where_another_process_had_its_beginning_read() -> None:
    process = Process()
    process.take(process.began(7, "b", chain=CHAIN))
    process.take(Others(ended=(7,)), 1.0)
    assert process.choice(60.0, CHAIN) == [Assignment(1, "b")]


def test_its_end_takes_all_of_it_back_but_the_prompt() -> None:
    process = Process()
    process.take(process.began(7, chain=CHAIN))
    process.take(Others(first=(7,)), 1.0)
    assert process.views["a"].load.wait_s(1.0) == 0.0
    process.take(Others(ended=(7,)), 2.0)
    load = process.views["a"].load
    assert (load.count, load.kv_tokens, len(process.elsewhere)) == (0, 0, 0)
    assert [key for key, _ in process.kv] == ["a", "a"]
    assert sum(tokens for _, tokens in process.kv) == 0
    assert process.kv[0][1] == 20_500


def test_one_whose_first_token_had_come_has_nothing_to_read() -> None:
    process = Process()
    process.take(process.began(7, read=True), 5.0)
    load = process.views["a"].load
    assert load.count == 1
    assert load.wait_s(5.0) == 0.0
    assert load.queueing == 1.0, "nothing is learnt from a wait that was not seen"
    assert load.remaining_s(5.0) > 0.1
    process.take(Others(first=(7,), ended=(7,)), 6.0)
    assert load.count == 0


def test_from_then_on_the_model_is_known_to_be_shared() -> None:
    process = Process()
    assert not process.scheduler._model("m").knowledge.shared
    process.take(process.began(7))
    assert process.scheduler._model("m").knowledge.shared


def test_nothing_is_learnt_of_speeds() -> None:
    process = Process()
    process.take(process.began(7))
    process.take(Others(first=(7,), ended=(7,)), 300.0)
    (speeds,) = process.scheduler.performance
    assert speeds.accuracy.total.count == 0


def test_numbers_of_both_kinds_do_not_meet() -> None:
    process = Process()
    process.scheduler.placed(request(7, 100, 10), process.views["a"], 0.0)
    process.take(process.began(7))
    assert process.views["a"].load.count == 2
    process.take(Others(ended=(7,)), 1.0)
    assert process.views["a"].load.count == 1


def test_who_is_held_is_looked_at_when_the_engine_has_read_or_ended() -> None:
    for then in (Others(first=(8,)), Others(ended=(8,))):
        process = Process()
        process.take(process.began(7, "a"))
        process.take(process.began(8, "b"))
        assert process.choice(0.0) == []
        assert process.scheduler.is_resting("m", 0.01)
        assert process.take(then, 0.01) == {"m"}
        assert not process.scheduler.is_resting("m", 0.01)
        assert process.choice(0.01) == [Assignment(1, "b")]


def test_what_is_not_known_is_ignored() -> None:
    process = Process()
    process.take(process.began(7, "gone"))
    assert process.take(Others(first=(7, 99), ended=(7, 99))) == set()
    assert len(process.elsewhere) == 0
    assert not process.kv


def test_a_number_that_begins_twice_breaks_the_protocol() -> None:
    process = Process()
    process.take(process.began(7))
    with pytest.raises(UnexpectedFrame, match="began twice"):
        process.take(process.began(7))
    process.take(Others(ended=(7,)))
    process.take(process.began(7))


def test_more_than_can_run_break_the_protocol() -> None:
    process, number = Process(), 0
    while number < limits.OTHERS_RUNNING:
        process.take(Others(tuple(OtherRequest(number + each, "gone") for each in range(1024))))
        number += 1024
    with pytest.raises(UnexpectedFrame, match="at once"):
        process.take(Others((OtherRequest(number, "gone"),)))
