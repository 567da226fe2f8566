"""The sentences that explain a request."""

from typing import Any

import pytest

from gateway.dispatch.decisions.words import EXCLUDED, OUTCOMES, TROUBLES, WAITS, coded, explain, seconds
from gateway.domain.request import PREEMPTED
from gateway.scheduling.health.failover import Trouble

PREDICTED = {
    "queue": 0.0,
    "load": 0.0,
    "transfer": 0.01,
    "prefill": 0.2,
    "decode": 1.5,
    "first_token": 0.21,
    "total": 1.71,
    "others": 0.0,
    "health": 1.0,
    "weighed": 1.8,
}


def candidate(
    key: str, *, chosen: bool = False, excluded: str | None = None, **parts: float
) -> dict[str, Any]:
    return {
        "deployment": key,
        "chosen": chosen,
        "excluded": None if excluded is None else coded(excluded, EXCLUDED),
        "predicted": PREDICTED | parts,
    }


def decision(*candidates: dict[str, Any], **more: Any) -> dict[str, Any]:
    usual = {
        "after_s": 0.0,
        "deployment": candidates[0]["deployment"],
        "policy": "cost",
        "continuing": False,
        "hedge": False,
        "why": None,
        "considered": len(candidates),
        "candidates": list(candidates),
        "actual": {"total_s": 2.0, "first_token_s": 0.3},
        "outcome": coded("answered", OUTCOMES),
    }
    return usual | more


def record(*decisions: dict[str, Any], **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "model": "m",
        "alias": None,
        "target": "",
        "route": "chat",
        "streaming": True,
        "tier": "standard",
        "key": "alice",
        "tenant": "acme",
        "state": "answered",
        "status": 200,
        "error": None,
        "total_s": 2.0,
        "queue": {"waited_s": 0.0, "ahead": 0, "reasons": []},
        "decisions": list(decisions),
        "tokens": {"prompt": 10, "completion": 20, "cached": 0},
        "gpu_s": 1.0,
        "cost": None,
    }
    return usual | more


def test_the_usual_request_is_told_in_a_few_lines() -> None:
    assert explain(record(decision(candidate("a/d", chosen=True)))) == [
        "A request for m, chat, streamed, tier standard, of key alice (tenant acme).",
        "It did not wait: a slot was free.",
        "It went to a/d after 0 ms.",
        "There was no other deployment of the model.",
        "Predicted: 1.71 s (the tunnel 10 ms, reading the prompt 0.2 s, writing the answer 1.5 s); it took "
        "2 s, its first token 0.3 s (predicted 0.21 s).",
        "It was answered with status 200, 2 s after it came.",
        "It used 10 prompt tokens, 20 tokens written, 1 GPU-seconds.",
    ]


def test_a_choice_is_told_with_what_makes_the_difference() -> None:
    lines = explain(
        record(
            decision(
                candidate("a/d", chosen=True),
                candidate("b/d", decode=3.0, weighed=3.3),
                candidate("c/d", excluded="residency"),
                considered=5,
            )
        )
    )
    assert (
        "The policy cost weighs 1.8 s there, the least; next is b/d with 3.3 s "
        "(most of the difference: writing the answer, 1.5 s against 3 s)." in lines
    )
    assert "Not c/d: the request may not run there." in lines
    assert "2 more deployments were there, of which no facts are kept." in lines


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {"continuing": True},
            "a/d went on with the answer, 3 s after the request came, because it was late, and",
        ),
        (
            {"hedge": True},
            "A second copy went to a/d after 3 s, because it was late, and a second copy was worth it.",
        ),
        ({}, "It went to a/d after 3 s, because it was late, and a second copy was worth it."),
    ],
)
def test_further_attempts_are_told_with_their_reasons(more: dict[str, Any], line: str) -> None:
    one = decision(candidate("a/d", chosen=True), after_s=3.0, why=coded("late", TROUBLES), **more)
    assert any(each.startswith(line) for each in explain(record(one)))


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {"state": "queued", "queue": {"waited_s": 2.0, "ahead": 1, "reasons": []}},
            "It waits: 2 s so far; 1 request",
        ),
        ({"state": "running"}, "It is not over: 2 s so far."),
        ({"state": "cancelled"}, "Its client left before the end, 2 s after it came."),
        (
            {"state": "failed", "status": 503, "error": "no_deployment"},
            "It failed with status 503 (no_deployment), 2 s",
        ),
        (
            {"decisions": [], "queue": {"waited_s": None, "ahead": None, "reasons": []}},
            "It did not come as far as",
        ),
        ({"decisions": []}, "No engine was asked: the answer was kept from another request."),
        ({"alias": "best", "target": "m"}, "A request for best (which stood for m), chat"),
        (
            {"tokens": {"prompt": 1, "completion": 1, "cached": 1}},
            "It used 1 prompt token, 1 token written, 1 of the prompt cached, 1 GPU-seconds.",
        ),
        ({"cost": 2.38e-05}, "It used 10 prompt tokens, 20 tokens written, 1 GPU-seconds, cost 0.0000238."),
        ({"cost": 0.0125}, "It used 10 prompt tokens, 20 tokens written, 1 GPU-seconds, cost 0.0125."),
        (
            {"queue": {"waited_s": 9.0, "ahead": 3, "reasons": [coded("no_slot", WAITS) | {"s": 9.0}]}},
            "For 9 s, every slot of the model was used.",
        ),
    ],
)
def test_what_became_of_it_is_told(more: dict[str, Any], line: str) -> None:
    one = decision(candidate("a/d", chosen=True))
    assert any(each.startswith(line) for each in explain(record(one) | more)), explain(record(one) | more)


@pytest.mark.parametrize(
    ("code", "said", "line"),
    [
        (
            "broken",
            "the engine closed the connection without an answer",
            "What came of it there: the engine closed the connection without an answer.",
        ),
        ("broken", "", "What came of it there: its engine failed before its answer was whole."),
        ("unreachable", "", "What came of it there: there was no engine."),
        (
            "timeout",
            "silent for 60 s.",
            "What came of it there: its engine took longer than it may: silent for 60 s.",
        ),
    ],
)
def test_what_the_agent_says_of_a_failure_is_told(code: str, said: str, line: str) -> None:
    came = coded(code, OUTCOMES) | {"said": said or None}
    assert line in explain(record(decision(candidate("a/d", chosen=True), outcome=came), state="failed"))


def test_one_deployment_more_is_told_of_in_the_singular() -> None:
    one = decision(candidate("a/d", chosen=True), candidate("b/d"), considered=3)
    assert "1 more deployment was there, of which no facts are kept." in explain(record(one))


def test_names_cannot_steer_a_terminal() -> None:
    one = decision(candidate("a/\x1b[2Jd", chosen=True))
    assert not any("\x1b" in line for line in explain(record(one, key="\x1b]0;x\x07")))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 ms"), (0.0123, "12.3 ms"), (0.25, "0.25 s"), (12.0, "12 s"), (200.4, "3 min 20 s")],
)
def test_seconds_have_a_unit_that_fits(value: float, text: str) -> None:
    assert seconds(value) == text


def test_every_trouble_has_words() -> None:
    assert {each.name.lower() for each in Trouble} | {PREEMPTED} <= TROUBLES.keys() <= OUTCOMES.keys()
    assert coded("something_new", TROUBLES) == {"code": "something_new", "words": "something new"}
