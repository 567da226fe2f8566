"""The checks of runs with several gateways find what they are for."""

import json
from dataclasses import replace

import pytest

from tests.chaos.asks import Ask
from tests.chaos.checks import Failure, Finding, Verdict
from tests.chaos.many.findings import ManyFindings
from tests.chaos.many.house import RPM
from tests.chaos.many.load import ClientOutcome, ShortAsk
from tests.chaos.many.plan import ManyPlan, Strike, Struck
from tests.chaos.many.run import as_json
from tests.chaos.many.strikes import StruckEntry
from tests.chaos.outcome import Outcome

ASK = Ask(1, "alpha", "chat", "count", tokens=10, stopped=False, stream=True, tokens_per_s=20.0)
RIGHT = ClientOutcome(0, Outcome(ASK, Finding(Verdict.RIGHT), None, 8.0, 9.0))
CUT = Failure("connection", "ClientPayloadError")
BROKEN = ClientOutcome(0, Outcome(ASK, Finding(Verdict.ERROR), CUT, 9.5, 10.0))


def entry(kind: Strike, gateway: int, from_s: float, until_s: float) -> StruckEntry:
    return StruckEntry(Struck(from_s, kind, gateway, 0.0), from_s, until_s, until_s)


KILLED = entry(Strike.GATEWAY_KILL, 0, 10.0, 12.0)


def test_an_error_is_allowed_for_clients_of_the_killed_gateway_alone() -> None:
    for gateway, allowed in ((0, True), (1, False)):
        findings = ManyFindings([KILLED], outcomes=[replace(BROKEN, gateway=gateway)])
        findings.judge_answers()
        assert (findings.wrong == []) == allowed
    findings = ManyFindings([entry(Strike.STORE_KILL, -1, 9.0, 12.0)], outcomes=[BROKEN])
    findings.judge_answers()
    assert findings.wrong


def test_programs_are_told_what_people_are() -> None:
    unfinished = StruckEntry(Struck(20.0, Strike.STORE_PAUSE, -1, 0.0), 20.0)
    findings = ManyFindings([KILLED, unfinished], 2, outcomes=[RIGHT, BROKEN], wrong=["a reason"])
    told = json.loads(json.dumps(as_json(findings, ManyPlan(7, gateways=2, seconds=30.0)), allow_nan=False))
    assert (told["seed"], told["gateways"], told["requests"]) == (7, 2, 2)
    assert told["verdicts"] == {"right": 1, "error": 1}
    assert [each["whole_s"] for each in told["faults"]] == [12.0, None]
    assert told["wrong"] == ["a reason"]


def test_a_limit_that_was_surely_exceeded_is_found() -> None:
    admitted = [ShortAsk(0, float(second), second + 0.1, 200) for second in range(RPM + 1)]
    findings = ManyFindings([], limited=admitted)
    findings.judge_limit()
    assert findings.wrong
    findings = ManyFindings([], limited=[*admitted[:-1], ShortAsk(0, 70.0, 70.1, 200)])
    findings.judge_limit()
    assert findings.wrong == []


@pytest.mark.parametrize(
    ("kinds", "workers", "allowed"),
    [
        ([Strike.STORE_KILL, Strike.GATEWAY_KILL], 1, RPM),
        ([Strike.SHARED_PAUSE], 1, RPM + RPM // 2),
        ([Strike.PART_SHARED, Strike.SHARED_KILL], 1, RPM + RPM // 2),
        ([Strike.SHARED_KILL, Strike.GATEWAY_KILL], 1, 2 * RPM),
        ([Strike.SHARED_FLUSH], 2, RPM + 3 * RPM // 4),
        ([Strike.SHARED_FLUSH, Strike.WORKER_KILL], 2, 2 * RPM),
        ([Strike.SHARED_FLUSH, Strike.WORKER_KILL, Strike.WORKER_KILL], 2, 2 * RPM + RPM // 4),
    ],
)
def test_what_is_allowed_follows_from_what_was_struck(
    kinds: list[Strike], workers: int, allowed: int
) -> None:
    entries = [entry(kind, 0, 1.0, 2.0) for kind in kinds]
    assert ManyFindings(entries, 2, workers).allowed == allowed


def test_what_was_killed_long_ago_allows_no_more() -> None:
    entries = [entry(Strike.SHARED_FLUSH, -1, 1.0, 2.0)]
    entries += [entry(Strike.GATEWAY_KILL, 0, at_s, at_s + 1.0) for at_s in (10.0, 131.0, 252.0)]
    assert ManyFindings(entries, 2, 1).allowed == 2 * RPM


def test_a_worker_that_is_killed_may_cut_off_its_clients() -> None:
    findings = ManyFindings([entry(Strike.WORKER_KILL, 0, 9.8, 9.8)], outcomes=[BROKEN])
    findings.judge_answers()
    assert findings.wrong == []


def test_usage_may_be_missing_from_the_last_second_or_since_the_store_was_away() -> None:
    for entries, usage, found in (
        ([], (0, 0), True),
        ([], (1, 10), False),
        ([], (2, 20), True),
        ([KILLED], (0, 0), False),
        ([entry(Strike.GATEWAY_KILL, 0, 20.0, 22.0)], (0, 0), True),
        ([entry(Strike.PART_STORE, 0, 9.5, 21.0), entry(Strike.GATEWAY_KILL, 0, 20.0, 22.0)], (0, 0), False),
        ([entry(Strike.PART_STORE, 1, 9.5, 21.0), entry(Strike.GATEWAY_KILL, 0, 20.0, 22.0)], (0, 0), True),
    ):
        findings = ManyFindings(entries, outcomes=[RIGHT], usage=usage)
        findings.judge_usage()
        assert bool(findings.wrong) == found, (entries, usage)


def test_what_comes_back_late_and_engines_above_their_slots_are_found() -> None:
    late = StruckEntry(Struck(1.0, Strike.SHARED_PAUSE, -1, 1.0), 1.0, 2.0, 20.0)
    findings = ManyFindings([late], peaks={"alpha-1": 9})
    findings.judge_times()
    findings.judge_slots(8)
    assert len(findings.wrong) == 2


def test_what_is_struck_again_and_again_has_until_that_is_over() -> None:
    first = StruckEntry(Struck(1.0, Strike.SHARED_PAUSE, -1, 1.0), 1.0, 2.0, 47.0, whole=False)
    others = [entry(Strike.STORE_PAUSE, -1, at_s, at_s + 5.0) for at_s in (10.0, 20.0, 35.0)]
    for struck, wrong in ((others, 0), (others[:2], 1)):
        findings = ManyFindings([first, *struck])
        findings.judge_times()
        assert len(findings.wrong) == wrong
