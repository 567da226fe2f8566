"""The answer as a whole: measured, as it is, and with the changes."""

import random
from typing import Any

import orjson
import pytest

from gateway.api.admin.whatif_body import WhatIfBody
from gateway.tools.whatif.facts import ReplayFact
from gateway.tools.whatif.run import NothingToReplay, run_whatif
from tests.gateway.tools.whatif.kit import deployment, fact, fleet, recording


def busy(model: str = "m", count: int = 60) -> list[ReplayFact]:
    """More than two slots of an H100 take in a minute."""
    dice = random.Random(7)
    return [
        fact(number * 0.1, model=model, tokens_in=dice.randint(10, 900), tokens_out=dice.randint(100, 300))
        for number in range(count)
    ]


def answer(facts: list[ReplayFact], *deployments: dict[str, Any], **changes: Any) -> dict[str, Any]:
    found = run_whatif(recording(facts), fleet(*deployments), WhatIfBody.model_validate(changes))
    orjson.dumps(found)
    return found


def test_without_changes_it_is_exactly_the_baseline() -> None:
    found = answer(busy())
    assert found["total"]["after"] == found["total"]["before"]
    assert found["series"]["after"] == found["series"]["before"]
    assert found["changes"] == []


def test_a_change_that_changes_nothing_is_replayed_and_comes_out_the_same() -> None:
    """The same slots, said anew: another plan object, and the same figures to the last digit."""
    found = answer(busy(), slots={"m": 2}, policy="cost")
    assert found["total"]["after"] == found["total"]["before"]
    assert len(found["changes"]) == 2


def test_two_more_shorten_the_queue_and_cost_more() -> None:
    found = answer(busy(), add=[{"count": 2}], gpu_hour=3.0)
    measured, before, after = (found["total"][name] for name in ("measured", "before", "after"))
    assert measured["queued_s"]["p90"] == 0.1
    assert after["queued_s"]["p90"] < 0.5 * before["queued_s"]["p90"]
    assert after["first_token_s"]["p99"] < before["first_token_s"]["p99"]
    assert (before["deployments"], after["deployments"]) == (1, 3)
    assert (before["cost"], after["cost"]) == (pytest.approx(0.05), pytest.approx(0.15))
    assert (found["speeds"][0]["before"], found["speeds"][0]["after"]) == (1, 3)


def test_a_model_that_nothing_changes_for_keeps_its_figures() -> None:
    both = deployment(1), deployment(2, model="n")
    found = answer([*busy(), *busy("n", 20)], *both, add=[{"model": "m"}])
    rows = {each["model"]: each for each in found["models"]}
    assert rows["n"]["after"] == rows["n"]["before"]
    assert rows["m"]["after"] != rows["m"]["before"]
    assert found["total"]["before"]["answered"] == 80


def test_what_is_not_replayed_is_counted_with_the_reason() -> None:
    found = answer([*busy(), fact(1.0, model="gone")])
    assert [(each["code"], each["requests"]) for each in found["left_out"]] == [("not_served", 1)]


def test_nothing_to_replay_is_said_with_the_reasons() -> None:
    with pytest.raises(NothingToReplay, match="no request was over in the minute before"):
        answer([])
    with pytest.raises(NothingToReplay, match="the only request cannot be replayed: 1 is for a model whose"):
        answer([fact(1.0, tokens_in=None, tokens_out=None)])
    with pytest.raises(NothingToReplay, match="of 2 requests none can be replayed: 2 are for models whose"):
        answer([fact(at_s, tokens_in=None, tokens_out=None) for at_s in (1.0, 2.0)])


def test_progress_is_told_of_both_runs() -> None:
    told: list[tuple[int, int]] = []
    body = WhatIfBody.model_validate({"add": [{"count": 1}]})
    run_whatif(recording(busy()), fleet(), body, lambda done, of: told.append((done, of)))
    assert told[0] == (0, 120)
    assert told[-1] == (120, 120)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_twice_the_pace_is_twice_the_tokens_a_second_in_the_course_as_well_as_in_all() -> None:
    steady = recording([fact(number * 0.5) for number in range(120)])
    answer = run_whatif(steady, fleet(), WhatIfBody(scale=2.0))
    for name, tokens_per_s in (("measured", 40.0), ("before", 40.0), ("after", 80.0)):
        course = answer["series"][name]["output_tokens_per_s"]
        assert sum(course) / len(course) == pytest.approx(tokens_per_s)
        assert answer["total"][name]["output_tokens_per_s"] == pytest.approx(tokens_per_s, rel=0.02)
