"""Queues under kills, small. Longer: ``tests/run chaos --part queues``."""

from pathlib import Path

import pytest

from gateway.domain.queues import QueueKind
from tests.chaos.jobs.brokers import BROKERS
from tests.chaos.jobs.queues import QueuesPlan, run_queues

SEED = 12


@pytest.mark.slow
async def test_no_message_is_lost_with_the_agent_that_had_it(tmp_path: Path) -> None:
    kinds = (QueueKind.REDIS_LIST,)
    plan = QueuesPlan(SEED, 80, 1, kinds=kinds, kills_gateways=False, linger_s=0.0)
    said: list[str] = []
    wrong = await run_queues(plan, tmp_path, said.append)
    assert not wrong, "\n".join(said)
    assert " 0 lost" not in said[1], f"the plain worker was not struck: {said}"


@pytest.mark.cluster
@pytest.mark.parametrize("kind", BROKERS)
async def test_no_message_is_lost_with_a_gateway_that_had_it(tmp_path: Path, kind: QueueKind) -> None:
    said: list[str] = []
    wrong = await run_queues(QueuesPlan(SEED, 300, 4, kinds=(kind,), linger_s=1.0), tmp_path, said.append)
    assert not wrong, "\n".join(said)
