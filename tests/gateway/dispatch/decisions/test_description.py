"""A record as JSON, from requests that went all kinds of ways."""

import pytest

from gateway.dispatch.decisions.description import describe, newest, summarize
from gateway.dispatch.decisions.records import KeptRequest
from gateway.domain.quotas import Price
from gateway.domain.request import PREEMPTED, Request
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers, Usage
from tests.gateway.dispatch.decisions.kept import facts, records
from tests.gateway.fleet.fleet import Fleet, deployment


def kept(request: Request, **more: object) -> KeptRequest:
    """``request`` as it is kept at its end."""
    book = records()
    usual = {"deployments": request.attempts, "troubles": request.troubles, "gpu_s": request.gpu_s} | more
    book.add(facts(1, **usual), "alice", 10, 20, request)
    (record,) = book.over()
    return record


def test_a_request_that_was_tried_again_says_why_and_what_became_of_each_attempt() -> None:
    fleet = Fleet(policy="cost")
    agents = [fleet.connect(name, deployment(slots=1)) for name in "ab"]
    client = fleet.submit(fleet.request(streaming=False, input_tokens=500, output_tokens=50))
    fleet.advance(1.0)
    (failing,) = [each for agent in agents for each in agent.open_streams]
    failing.stream.reset(ErrorCode.SESSION_LOST)
    fleet.advance(0.5)
    (stream,) = [each for agent in agents for each in agent.open_streams]
    stream.stream.send_head(ResponseHead(200, ()))
    stream.stream.end(Trailers(Usage(480, 44), gpu_s=0.25))
    fleet.advance(0.5)
    found = describe(kept(client.request, usage=Usage(480, 44), price=Price(2.0, 4.0)), "p", 5.0)
    first, second = found["decisions"]
    assert (first["outcome"]["code"], first["why"]) == ("lost", None)
    assert (second["outcome"]["code"], second["why"]["code"]) == ("answered", "lost")
    assert second["why"]["words"] == "its agent's session was over"
    assert second["after_s"] == pytest.approx(1.0, abs=0.01)
    assert second["actual"]["total_s"] == pytest.approx(0.5, abs=0.01)
    assert found["cost"] == pytest.approx((480 * 2 + 44 * 4) / 1e6)
    assert found["tokens"] == {
        "prompt": 480,
        "completion": 44,
        "cached": 0,
        "expected_prompt": 500,
        "expected_completion": 50,
    }
    assert found["bytes"] == {"in": 10, "out": 20}
    chosen = second["candidates"][0]
    assert chosen["chosen"]
    assert chosen["predicted"]["total"] > chosen["predicted"]["first_token"] > 0
    assert found["agent"] == second["agent"]
    assert (
        f"Then it went to {second['deployment']} after 1 s, because its agent's session was over."
        in found["words"]
    )


@pytest.mark.parametrize("begun", [False, True], ids=["before its answer began", "in the middle of it"])
def test_why_an_agent_gave_an_attempt_up_is_kept_in_its_words(begun: bool) -> None:
    fleet = Fleet(policy="cost")
    agent = fleet.connect("a", deployment(slots=1))
    client = fleet.submit(fleet.request(streaming=True))
    (stream,) = agent.open_streams
    if begun:
        stream.stream.send_head(ResponseHead(200, ()))
        stream.stream.send_data(b"data: {}\n\n")
        fleet.advance(0.1)
    stream.stream.reset(ErrorCode.ENGINE_FAILED, "the engine closed the connection" + "!" * 300)
    fleet.advance(0.1)
    (decision,) = describe(kept(client.request, status=502), "p", 5.0)["decisions"]
    assert decision["outcome"]["code"] == "broken"
    assert decision["outcome"]["said"] == ("the engine closed the connection" + "!" * 300)[:200]


def test_what_gave_its_slot_back_is_told_so() -> None:
    fleet = Fleet(policy="cost")
    fleet.connect("a", deployment(slots=1))
    client = fleet.submit()
    client.request.note_trouble("a/d-m", PREEMPTED)
    client.request.preempted = 1
    found = describe(kept(client.request), "p", 5.0)
    (decision,) = found["decisions"]
    assert (found["preempted"], decision["outcome"]["code"]) == (1, "preempted")


def test_a_request_that_waited_in_vain_says_for_how_long_and_why() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment(slots=1))
    fleet.submit()
    waiting = fleet.submit(fleet.request(deadline_s=fleet.loop.now_s + 5.0))
    fleet.advance(6.0)
    record = kept(waiting.request, status=504, error="deadline_exceeded", total_s=5.0, first_byte_s=None)
    found = describe(record, "p", 5.0)
    assert (found["state"], found["slow"], found["decisions"]) == ("failed", True, [])
    assert found["queue"]["waited_s"] == pytest.approx(5.0)
    assert [each["code"] for each in found["queue"]["reasons"]] == ["no_slot"]
    assert (found["deployment"], found["agent"], found["attempts"]) == (None, None, 0)


def test_what_is_not_known_is_null() -> None:
    book = records()
    book.add(facts(1, model=None, tier=None, status=400, deployments=()), "alice", None, None, None)
    (record,) = book.over()
    found = summarize(record, "p", 5.0)
    assert (found["model"], found["tier"], found["tokens_in"], found["deployment"]) == (
        None,
        None,
        None,
        None,
    )
    whole = describe(record, "p", 5.0)
    assert (whole["queue"]["waited_s"], whole["cost"], whole["bytes"]["in"]) == (None, None, None)
    assert found.items() <= whole.items()


def test_of_requests_with_one_id_the_last_counts() -> None:
    book = records()
    for at_s in (5.0, 9.0, 7.0):
        book.add(facts(1, at_s=at_s), "k", 1, 2, None)
    found = newest(list(book.over()))
    assert found is not None
    assert found.facts.at_s == 9.0
    assert newest([]) is None
