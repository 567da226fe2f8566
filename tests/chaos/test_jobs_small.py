"""Jobs under kills, small. Longer: ``tests/run chaos --part jobs``."""

from pathlib import Path

import pytest

from tests.chaos.jobs.batches import run_batches
from tests.chaos.jobs.house import SLOTS
from tests.chaos.jobs.lines import JobsPlan

SEED = 12
LINES, KILLS = 96, 2


@pytest.mark.slow
@pytest.mark.parametrize("gateways", [1, pytest.param(3, marks=pytest.mark.cluster)])
async def test_every_line_is_answered_once_though_gateways_are_killed(tmp_path: Path, gateways: int) -> None:
    plan = JobsPlan(SEED, LINES, KILLS, gateways, demo=False)
    said: list[str] = []
    most_doubled = KILLS * 2 * SLOTS / LINES * 2  # what runs at each kill, of lines up to twice as long
    wrong = await run_batches(plan, tmp_path, said.append, most_doubled)
    assert not wrong, "\n".join(said)
