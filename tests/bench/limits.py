"""What limits cost a request: CPU time in one process, without the stage, without limits, with some, all.

Run in turns, so that what else the machine does meets all of them.
"""

import statistics
import time
from collections.abc import Mapping

import orjson

from gateway.api.exchange.middleware import RequestMiddleware
from gateway.api.routes import build_router
from gateway.domain.quotas import Budgets, Rates, TenantLimits
from gateway.pipeline.pipeline import Pipeline
from shared.protocol.messages import Usage
from tests.gateway.api.support import FakeMetrics
from tests.gateway.quota.support import CHAT, Stage

MUCH = 10**11
RATES = Rates(MUCH, MUCH, 100)
TENANT = TenantLimits(RATES, Budgets(MUCH, MUCH, 1e11, 1e11, 1e11, 1e11))
BODY = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi" * 500}], "max_tokens": 100})


def without_stage() -> Stage:
    """A surface whose pipeline knows no limits at all."""
    stage = Stage()
    surface = stage.surface
    pipeline = Pipeline(stage.keys, stage.dispatcher.run, stage.ledger)
    router = build_router(
        pipeline, stage.keys, surface.catalog, FakeMetrics(), surface.lifecycle, surface.settings
    )
    surface.app = RequestMiddleware(router, surface.settings, surface.budget, surface.lifecycle, stage.note)
    return stage


def stages() -> dict[str, Stage]:
    """What is compared."""
    return {
        "no stage": without_stage(),
        "no limits": Stage(),
        "a key's": Stage(RATES),
        "a key's, its tenant's, six budgets": Stage(RATES, TENANT),
    }


async def run(rounds: int, requests: int) -> Mapping[str, float]:
    """Median CPU microseconds of a request, of so many rounds of so many requests each."""
    compared = stages()
    took: dict[str, list[float]] = {name: [] for name in compared}
    for stage in compared.values():
        stage.answer(Usage(300, 50))
    for _ in range(rounds):
        for name, stage in compared.items():
            began_s = time.process_time()
            for _ in range(requests):
                call = await stage.surface.post(CHAT, BODY)
                assert call.status == 200
            took[name].append((time.process_time() - began_s) / requests * 1e6)
    return {name: statistics.median(each) for name, each in took.items()}
