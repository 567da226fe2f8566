"""A few seconds of chaos with a fixed seed. By hand and longer: ``tests/run chaos``."""

from pathlib import Path

import pytest

from tests.chaos.lost import Loss, run_losses
from tests.chaos.run import Plan, run

SEED = 170


@pytest.mark.slow
@pytest.mark.parametrize("short_budgets", [True, pytest.param(False, marks=pytest.mark.cluster)])
async def test_nothing_is_lost_in_a_short_run_of_chaos(tmp_path: Path, short_budgets: bool) -> None:
    plan = Plan(
        seed=SEED,
        seconds=8,
        rate_per_s=25,
        demo=False,
        small=True,
        restarts=False,
        short_budgets=short_budgets,
    )
    said: list[str] = []
    report = await run(plan, tmp_path, said.append)
    assert not report.failures, "\n".join([report.text(), *report.tally.offending[:10]])
    assert report.faults_struck >= 10
    assert report.tally.repaired > 50


@pytest.mark.slow
async def test_requests_at_an_engine_that_is_lost_end_elsewhere(tmp_path: Path) -> None:
    said: list[str] = []
    failures = await run_losses([Loss.UNWELL], tmp_path, said.append)
    assert not failures, "\n".join([*said, *failures])
