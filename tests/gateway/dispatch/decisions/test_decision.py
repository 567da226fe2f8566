"""What is noted when a deployment gets a request."""

from typing import Any

import pytest
from msgspec import structs

from gateway.dispatch.decisions.decision import MOST_CANDIDATES, MOST_DECISIONS, exclusion
from gateway.dispatch.decisions.words import EXCLUDED, WAITS
from gateway.domain.request import Request
from gateway.domain.residency import read_where
from gateway.scheduling.base import NO_CAP, DeploymentView, PendingRequest
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers
from tests.gateway.fleet.fleet import EngineStream, FakeAgent, Fleet, deployment
from tests.gateway.scheduling.views import request, view


def answer(fleet: Fleet, stream: EngineStream) -> None:
    stream.stream.send_head(ResponseHead(200, ()))
    stream.stream.send_data(b"data: 1\n\n")
    stream.stream.end(Trailers())
    fleet.settle()


def streams(*agents: FakeAgent) -> list[EngineStream]:
    return [each for agent in agents for each in agent.open_streams]


def test_the_chosen_and_the_others_are_noted_as_they_were_before_the_request() -> None:
    fleet = Fleet(policy="cost")
    agents = [fleet.connect(name, deployment(slots=2)) for name in "ab"]
    first, second = fleet.submit(), fleet.submit()
    (one,), (two,) = first.request.decisions or [], second.request.decisions or []
    assert (one.considered, one.policy, one.ahead, one.second_copy) == (2, "cost", 0, False)
    assert [each.in_flight for each in one.candidates] == [0, 0]
    assert sorted(each.in_flight for each in two.candidates) == [0, 1]
    assert two.candidates[0].key == two.key
    assert [each.excluded for each in (*one.candidates, *two.candidates)] == [None] * 4
    assert one.ended_s is None
    fleet.advance(2.0)
    for each in streams(*agents):
        answer(fleet, each)
    assert one.ended_s == pytest.approx(one.opened_s + 2.0)
    assert one.first_piece_s == pytest.approx(one.opened_s + 2.0)


def test_a_request_that_waited_says_how_many_waited_before_it_and_why() -> None:
    fleet = Fleet(policy="cost")
    agent = fleet.connect("a", deployment(slots=1))
    clients = [fleet.submit() for _ in range(3)]
    for _ in range(3):
        fleet.advance(1.0)
        (stream,) = agent.open_streams
        answer(fleet, stream)
    noted = [(each.request.decisions or [])[0] for each in clients]
    assert [each.ahead for each in noted] == [0, 0, 1]
    assert [[code for code, _ in each.waits] for each in noted] == [[], ["no_slot"], ["no_slot"]]
    assert noted[2].waits[0][1] == pytest.approx(2.0)


def test_one_that_never_got_a_slot_says_why_too() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment(slots=1))
    fleet.submit()
    waiting = fleet.submit(fleet.request(deadline_s=fleet.loop.now_s + 5.0))
    fleet.advance(6.0)
    assert waiting.request.decisions is None
    assert waiting.request.last_wait is not None
    *_, ahead, reasons = waiting.request.last_wait
    assert (ahead, [code for code, _ in reasons]) == (0, ["no_slot"])
    assert WAITS.keys() >= {"no_slot", "held", "no_suitable_slot", "loading", "no_deployment"}


def test_another_attempt_is_another_decision_and_no_more_are_kept_than_there_is_room_for() -> None:
    fleet = Fleet(policy="cost")
    agents = [fleet.connect(name, deployment(slots=1)) for name in "ab"]
    client = fleet.submit()
    for _ in range(MOST_DECISIONS + 3):
        for stream in streams(*agents):
            stream.stream.reset(ErrorCode.REFUSED)
        fleet.advance(1.0)
    decisions = client.request.decisions or []
    assert len(decisions) == min(len(client.request.attempts), MOST_DECISIONS)
    assert len(client.request.attempts) > 2
    assert decisions[0].key != decisions[1].key
    before = {each.key: each.excluded for each in decisions[1].candidates}
    assert before[decisions[0].key] in ("avoided", "health", "full")


def test_of_many_deployments_some_are_kept_and_the_chosen_one_among_them() -> None:
    fleet = Fleet(policy="cost")
    for number in range(40):
        fleet.connect(f"a{number}", deployment(slots=4))
    seen: set[str] = set()
    for _ in range(20):
        client = fleet.submit()
        (decision,) = client.request.decisions or []
        assert decision.considered == 40
        assert len(decision.candidates) == MOST_CANDIDATES
        keys = [each.key for each in decision.candidates]
        assert keys[0] == decision.key
        assert len(set(keys)) == len(keys)
        seen.update(keys)
    assert len(seen) > 20, "others for another request"


def test_nothing_is_noted_where_no_records_are_kept() -> None:
    fleet = Fleet()
    fleet.dispatcher.decisions.enabled = False
    agent = fleet.connect("a", deployment())
    client = fleet.submit()
    answer(fleet, agent.open_streams[0])
    assert client.request.decisions is None


def _usual() -> tuple[DeploymentView, PendingRequest]:
    return view("a/d", 4), request(1)


@pytest.mark.parametrize(
    ("of_view", "of_item", "code"),
    [
        ({}, {}, None),
        ({"usable": False}, {}, "health"),
        ({"routes": frozenset({"embeddings"})}, {}, "route"),
        ({}, {"avoid": frozenset({"a/d"})}, "avoided"),
        ({"version": "v1"}, {"version": "v2"}, "version"),
        ({"labels": {"region": "us"}}, {"where": read_where("region=eu")}, "residency"),
        ({}, {"agent": "another"}, "agent"),
        ({}, {"continuing": True}, "cannot_continue"),
        ({"in_flight": 4}, {}, "full"),
        ({"in_flight": 2, "cap": 2}, {}, "health"),
        ({"in_flight": 2, "cap": NO_CAP}, {}, None),
        ({"kv_free_tokens": 1000}, {}, "context"),
        ({"kv_free_tokens": 2000}, {}, None),
        ({"translated": frozenset({"chat"})}, {}, "translated"),
    ],
)
def test_what_keeps_a_request_from_a_deployment_has_a_code(
    of_view: dict[str, Any], of_item: dict[str, Any], code: str | None
) -> None:
    one, item = _usual()
    for name, value in of_view.items():
        setattr(one, name, value)
    item = structs.replace(item, **of_item)
    assert exclusion(one, item, item.avoid, view("b/d")) == code
    assert code is None or code in EXCLUDED


def test_why_a_deployment_takes_nothing_is_told_of_its_session() -> None:
    fleet = Fleet(policy="cost")
    agent = fleet.connect("a", deployment(slots=1))
    fleet.connect("b", deployment(slots=4))
    (known,) = [each for each in fleet.registry.index.serving("m") if each.agent == "a"]
    item = request(1)

    def code() -> str | None:
        return exclusion(known, item, frozenset(), view("x"))

    assert code() is None
    session = fleet.session(agent)
    session.set_full(True)
    assert code() == "session_full"
    session.set_full(False)
    session.on_session_suspended(None)
    assert code() == "suspended"
    session.on_session_resumed()
    known.closing = True
    known.usable = known.compute_usable()
    assert code() == "closing"


def test_a_request_holds_no_more_than_facts_in_its_decisions() -> None:
    fleet = Fleet(policy="cost")
    fleet.connect("a", deployment())
    client = fleet.submit()
    (decision,) = client.request.decisions or []
    held = vars(decision).values()
    assert not any(isinstance(each, Request | DeploymentView | PendingRequest) for each in held)
