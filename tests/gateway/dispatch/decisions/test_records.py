"""What is kept of requests that are over."""

import gc
import itertools

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from gateway.app.records import make_records
from gateway.dispatch.attempt import Attempt
from gateway.dispatch.decisions.records import RecordSettings, RequestRecords
from gateway.domain.request import Request, RequestBody
from gateway.fleet.deployment import Deployment
from gateway.fleet.session import AgentSession
from gateway.runtime.config import Settings
from tests.gateway.dispatch.decisions.kept import facts, records
from tests.gateway.fleet.fleet import Fleet, deployment

SECRET = b'{"messages":[{"role":"user","content":"swordfish"}]}'


def test_one_that_runs_has_arrived_at_the_same_time_whenever_one_looks() -> None:
    """Pages know it again by that time; clocks that are read one after the other differ by a little."""
    fleet = Fleet(policy="cost")
    fleet.connect("a", deployment(slots=1))
    fleet.submit()
    dispatcher = fleet.dispatcher
    readings = itertools.count()
    set_by_s = 0.0

    def wall() -> float:
        return dispatcher.timers.time() + 1_700_000_000.0004 + (next(readings) % 3) * 0.001 + set_by_s

    book = RequestRecords(RecordSettings(), dispatcher.exchanges.values, dispatcher.timers.time, wall)
    seen = set()
    for _ in range(20):
        fleet.advance(0.37)
        (running,) = book.not_over()
        seen.add(running.began_at_s)
    assert len(seen) == 1
    set_by_s = 3600.0
    (running,) = book.not_over()
    assert 3599 < running.began_at_s - seen.pop() < 3601, "somebody set the machine's clock"


@given(st.lists(st.sampled_from(["fast", "slow", "failed", "cancelled"]), max_size=40))
def test_the_latest_are_kept_and_the_latest_slow_and_failed_ones_longer(kinds: list[str]) -> None:
    book = records(recent=3, slow=2, failed=2)
    for number, kind in enumerate(kinds, 1):
        status = {"failed": 503, "cancelled": 499}.get(kind, 200)
        first_s = 9.0 if kind == "slow" else 0.5
        book.add(facts(number, status=status, first_byte_s=first_s), "key", 1, 2, None)
    numbers = list(range(len(kinds), 0, -1))
    of = {kind: [number for number in numbers if kinds[number - 1] == kind] for kind in ("slow", "failed")}
    expected = sorted({*numbers[:3], *of["slow"][:2], *of["failed"][:2]}, reverse=True)
    assert [each.number for each in book.over()] == expected
    assert book.ended == len(kinds)
    assert book.failed == len(of["failed"])
    assert book.kept() == {
        "recent": min(3, len(kinds)),
        "slow": min(2, len(of["slow"])),
        "failed": min(2, len(of["failed"])),
    }
    behind = [each.number for each in book.since(max(0, len(kinds) - 2))]
    assert behind == sorted(numbers[:2]), "those since one that is known, in order"


def test_what_is_no_request_for_a_model_is_not_kept() -> None:
    book = records()
    book.add(facts(1, route="admin", model=None), "key", 1, 2, None)
    book.add(facts(2, route="chat", model=None, status=400), "key", 1, 2, None)
    assert [each.facts.id for each in book.over()] == ["r2"]


def test_requests_that_wait_or_run_are_shown_as_such() -> None:
    fleet = Fleet(policy="cost")
    agent = fleet.connect("a", deployment(slots=1))
    book = make_records(Settings(), fleet.dispatcher)
    fleet.submit()
    fleet.advance(1.0)
    fleet.submit()
    fleet.advance(2.0)
    waiting, running = book.not_over()
    assert (waiting.state, waiting.facts.deployments, waiting.facts.queue_s) == ("queued", [], 2.0)
    assert (running.state, running.facts.deployments) == ("running", ["a/d-m"])
    assert (running.facts.total_s, running.facts.status, running.bytes_in) == (3.0, 0, None)
    assert len(agent.open_streams) == 1


def test_from_a_record_nothing_is_reached_but_facts() -> None:
    """Neither content nor what would keep a session alive."""
    fleet = Fleet(policy="cost")
    agent = fleet.connect("a", deployment(slots=1))
    book = make_records(Settings(), fleet.dispatcher)
    request = fleet.request(body=RequestBody(SECRET))
    fleet.submit(request)
    fleet.cut(agent)
    book.add(facts(1), "key", 1, 2, request)
    (record,) = book.over()
    seen: set[int] = set()
    todo: list[object] = [record]
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        assert not isinstance(each, Request | RequestBody | Deployment | AgentSession | Attempt)
        assert not isinstance(each, bytes)
        todo += structs.astuple(each) if isinstance(each, Struct) else gc.get_referents(each)
    assert len(seen) > 20, "the decision is there"


def test_without_records_nothing_is_noted() -> None:
    fleet = Fleet()
    make_records(Settings(records={"recent": 0}), fleet.dispatcher)
    assert not fleet.dispatcher.decisions.enabled
