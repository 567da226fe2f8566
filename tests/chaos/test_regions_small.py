"""Two regions on loopback, the nearer of which is cut off for some seconds; `tests/run chaos --regions` plays
a whole game day, in network namespaces."""

from dataclasses import replace
from pathlib import Path

from tests.chaos.regions.game import Figures, GameFindings, GamePlan, Told
from tests.chaos.regions.run import run_regions
from tests.support.processes import answer_to

SMALL = GamePlan(
    namespaces=False,
    regions=(("eu", 0.002), ("us", 0.02)),
    streams=3,
    tokens=60,
    tokens_per_s=5.0,
    steady_s=1.0,
    outage_s=10.0,
    failback_s=2.0,
    ramp_s=2.0,
    kill=False,
    short=True,
)


async def test_streams_go_on_in_another_region_and_the_one_that_was_lost_comes_back(tmp_path: Path) -> None:
    findings = await run_regions(SMALL, tmp_path, print)
    assert findings.wrong == []
    assert findings.figures.streams_go_on_s is not None
    assert any(each.bound is not None for each in findings.told)


def told(number: int, **more: object) -> Told:
    text = answer_to(f"game {number}", 3)
    return replace(Told(number, 3, 0.0, status=200, id=f"r{number}", text=text, ended=True), **more)  # type: ignore[arg-type]


RAN = {"r1": ["us/m"], "r2": ["us/m"]}


def test_what_is_lost_doubled_or_leaves_its_region_is_found() -> None:
    findings = GameFindings(SMALL, told=[told(1), told(2, bound="us")], tokens_booked=6, ran=RAN)
    findings.judge()
    assert findings.wrong == []
    twice = answer_to("game 1", 3) + answer_to("game 1", 1)
    for wrong in (
        told(1, text=answer_to("game 1", 2)),
        told(1, text=twice),
        told(1, ended=False),
        told(1, bound="eu"),
        told(1, status=503, error="residency_unavailable", text="", ended=False),
    ):
        findings = GameFindings(SMALL, told=[wrong], tokens_booked=3 if wrong.right else 0, ran=RAN)
        findings.judge()
        assert len(findings.wrong) == 1
    for status in (200, 503):
        refused = told(3, bound="eu", status=status, error="residency_unavailable", text="", ended=False)
        findings = GameFindings(SMALL, told=[refused], ran=RAN)
        findings.judge()
        assert findings.wrong == []


def test_tokens_that_are_booked_twice_and_promises_that_are_broken_are_found() -> None:
    findings = GameFindings(SMALL, told=[told(1)], tokens_booked=6, ran=RAN)
    findings.figures = Figures(streams_go_on_s=30.0)
    findings.judge()
    findings.judge_times(Figures(streams_go_on_s=20.0, failback_s=5.0))
    assert len(findings.wrong) == 3
