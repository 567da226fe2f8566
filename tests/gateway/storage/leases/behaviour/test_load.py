"""Eight processes that state many limits at once, in orders of their own: nobody waits in a circle, and no
limit is exceeded."""

import asyncio
import statistics
import time
from random import Random

import pytest

from gateway.storage.leases.rules import LeaseStatement
from tests.gateway.storage.leases.conftest import MakeEngine

PROCESSES, EXCHANGES, LIMITS = 8, 15, 12
MOST = 40.0


async def test_many_exchanges_at_once_exceed_no_limit_and_lock_nobody_out(
    make_engine: MakeEngine, kind: str
) -> None:
    if kind == "memory":
        pytest.skip("each has limits of its own")
    keys = [f"load-{number}" for number in range(LIMITS)]
    granted: dict[tuple[str, str], float] = {}
    took_s: list[float] = []

    async def one(name: str) -> None:
        engine, random = make_engine(None), Random(name)
        try:
            for sequence in range(1, EXCHANGES + 1):
                asked = random.sample(keys, LIMITS // 2)
                statements = [
                    LeaseStatement(
                        key,
                        MOST,
                        60.0,
                        600.0,
                        sequence,
                        keep=granted.get((name, key), 0.0),
                        need=1.0,
                        least=1.0,
                    )
                    for key in asked
                ]
                began_s = time.monotonic()
                grants = await engine.exchange(name, statements)
                took_s.append(time.monotonic() - began_s)
                for key, grant in zip(asked, grants, strict=True):
                    granted[name, key] = granted.get((name, key), 0.0) + grant.granted
        finally:
            await engine.close()

    await asyncio.gather(*(one(f"p{number}") for number in range(PROCESSES)))
    held = {key: sum(each for (_, whose), each in granted.items() if whose == key) for key in keys}
    assert max(held.values()) == MOST, "all of a limit is leased, and no more"
    took_s.sort()
    median_ms, p99_ms = statistics.median(took_s) * 1000, took_s[int(0.99 * len(took_s))] * 1000
    print(  # noqa: T201 - for docs/cluster.md
        f"\n{kind}: {len(took_s)} exchanges of {LIMITS // 2} limits by {PROCESSES} processes, "
        f"median {median_ms:.1f} ms, p99 {p99_ms:.1f} ms"
    )
