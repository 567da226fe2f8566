from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.chaos.jobs.judge import BatchFindings
from tests.chaos.jobs.lines import BatchLine, JobsPlan, draw_kills

LINES = (
    BatchLine("a", "alpha", "first", 3),
    BatchLine("b", "alpha", "second", 2, is_refused=True),
    BatchLine("c", "alpha", "third", 4),
)
Entry = dict[str, Any]


def answer(line: BatchLine, **more: Any) -> Entry:
    usage = {"prompt_tokens": 1, "completion_tokens": line.tokens}
    body = {"choices": [{"message": {"content": line.text}}], "usage": usage} | more
    response = {"status_code": 200, "body": body}
    return {"id": f"job {line.custom_id}", "custom_id": line.custom_id, "response": response, "error": None}


def refusal(line: BatchLine) -> Entry:
    response = {"status_code": 400, "body": {"error": {}}}
    return {"id": f"job {line.custom_id}", "custom_id": line.custom_id, "response": response, "error": None}


def batch(**more: Any) -> Entry:
    return {
        "id": "batch_1",
        "status": "completed",
        "request_counts": {"total": 3, "completed": 2, "failed": 1},
        "usage": {"input_tokens": 2, "output_tokens": 7, "total_tokens": 9},
    } | more


def judged(output: list[Entry], errors: list[Entry], shown: Entry | None = None) -> BatchFindings:
    findings = BatchFindings()
    files = [b"".join(orjson.dumps(each) + b"\n" for each in entries) for entries in (output, errors)]
    findings.judge(LINES, shown or batch(), files[0], files[1])
    return findings


OTHER = [{"message": {"content": LINES[2].text}}]
GOOD = ([answer(LINES[0]), answer(LINES[2])], [refusal(LINES[1])])


def test_a_batch_of_which_all_is_there_is_right() -> None:
    findings = judged(*GOOD)
    assert findings.wrong == []
    assert (findings.lines, findings.right, findings.refused, findings.tokens) == (3, 2, 1, 7)


@pytest.mark.parametrize(
    ("output", "errors", "what"),
    [
        ([GOOD[0][0]], GOOD[1], "lost lines"),
        ([*GOOD[0], GOOD[0][1]], GOOD[1], "doubled custom_id"),
        ([*GOOD[0], refusal(LINES[1])], GOOD[1], "doubled custom_id"),
        ([*GOOD[0], answer(replace(LINES[0], custom_id="z"))], GOOD[1], "unknown lines"),
        (GOOD[0][::-1], GOOD[1], "not in the order of the lines"),
        ([answer(LINES[0], choices=OTHER), GOOD[0][1]], GOOD[1], "wrong answer"),
        ([answer(LINES[0], choices=[]), GOOD[0][1]], GOOD[1], "no answer"),
        ([GOOD[0][0]], [refusal(LINES[1]), refusal(LINES[2])], "failed"),
        (
            [answer(LINES[0], usage={"prompt_tokens": 1, "completion_tokens": 6}), GOOD[0][1]],
            GOOD[1],
            "wrong usage",
        ),
    ],
)
def test_what_is_lost_doubled_or_wrong_is_named(output: list[Entry], errors: list[Entry], what: str) -> None:
    assert what in judged(output, errors).faults


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"status": "expired"}, "wrong status"),
        ({"request_counts": {"total": 3, "completed": 3, "failed": 0}}, "wrong counts"),
        ({"usage": {"input_tokens": 2, "output_tokens": 8, "total_tokens": 9}}, "wrong usage"),
        ({"usage": {"input_tokens": 2, "output_tokens": 7, "total_tokens": 8}}, "wrong total of its usage"),
        ({"usage": None}, "wrong usage"),
    ],
)
def test_a_batch_that_says_otherwise_of_itself_is_wrong(more: Entry, what: str) -> None:
    assert what in judged(*GOOD, batch(**more)).faults


def test_tokens_computed_twice_are_a_share_of_those_in_the_answers() -> None:
    findings = judged(*GOOD)
    assert findings.judge_tokens(7) == 0.0
    assert findings.judge_tokens(14, limit=1.0) == 1.0
    assert findings.wrong == []
    findings.judge_tokens(8)
    findings.judge_tokens(6)
    assert list(findings.faults) == ["tokens computed twice", "tokens not computed"]


def test_a_plan_is_of_its_seed_alone_and_has_every_line_once() -> None:
    plan = JobsPlan(7, lines=500, kills=5, gateways=3)
    assert plan == JobsPlan(7, lines=500, kills=5, gateways=3)
    assert plan.batches() == JobsPlan(7, lines=500, kills=5, gateways=3).batches()
    assert plan.batches() != replace(plan, seed=8).batches()
    names = [line.custom_id for lines in plan.batches() for line in lines]
    assert len(names) == len(set(names)) == 500
    assert [len({line.model for line in lines}) for lines in plan.batches()] == [1, 1]
    assert any(line.is_refused for line in plan.batches()[0])
    request = orjson.loads(plan.batches()[0][0].request())
    assert request["body"]["messages"][0]["content"] == plan.batches()[0][0].prompt


def test_kills_are_spread_from_the_first_line_to_the_last() -> None:
    kills = draw_kills(3, 1000, 5, 2)
    assert [kill.after for kill in kills] == [0, 250, 500, 750, 1000]
    assert {kill.gateway for kill in kills} <= {0, 1}
    assert [kill.after for kill in draw_kills(3, 1000, 2, 1)] == [500, 1000]
    assert [kill.after for kill in draw_kills(3, 1000, 1, 1)] == [500]
    assert draw_kills(3, 1000, 0, 1) == ()
