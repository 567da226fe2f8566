"""A few seconds of every fault between several gateways. Longer: ``tests/run chaos --gateways 3``."""

from pathlib import Path

import pytest

from tests.chaos.many.plan import ManyPlan, Strike
from tests.chaos.many.run import run_many

pytestmark = pytest.mark.long

SEED = 58
KINDS = tuple(kind for kind in Strike if kind is not Strike.WORKERS_ROLL)
"""Replacing workers takes as long as the rest together; ``tests/integration/test_workers.py`` does it."""


@pytest.mark.slow
async def test_nothing_is_lost_where_one_of_several_gateways_workers_or_servers_dies(tmp_path: Path) -> None:
    plan = ManyPlan(
        SEED,
        gateways=2,
        workers=2,
        seconds=10.0,
        every_s=0.5,
        longest_s=1.2,
        rate_per_s=10.0,
        kinds=KINDS,
    )
    said: list[str] = []
    findings = await run_many(plan, tmp_path, said.append)
    assert not findings.wrong, "\n".join(said)
    assert {entry.struck.kind for entry in findings.entries} == set(KINDS)
    assert findings.verdicts()["right"] > 50
