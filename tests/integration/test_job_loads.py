"""The loads of jobs, small: that all is measured, not how good it is. In full: ``tests/run bench jobs``."""

from pathlib import Path

import pytest

from tests.bench.jobs import beside, completion, large_files, queued, stores
from tests.bench.peers import tools
from tests.support.processes import House

pytestmark = pytest.mark.slow


@pytest.mark.skipif(tools.missing() is not None, reason=str(tools.missing()))
def test_what_a_job_costs_is_told_for_each_part(tmp_path: Path) -> None:
    (cost,) = stores.run(tmp_path, stores.StoreSizes(100, warm=10), only=("PostgreSQL and Redis",)).setups
    assert cost.failed == 0, cost
    assert cost.per_s > 0, cost
    assert min(cost.gateway_us, cost.agent_us) > 0, cost
    assert cost.store_us is not None
    assert cost.redis_us is not None


def test_claims_and_lists_are_timed_with_few_and_with_many_jobs(tmp_path: Path) -> None:
    seen = queued.run(tmp_path, queued.QueuedSizes(few=60, many=600, times=5), only=("SQLite",))
    (store,) = seen.stores
    assert store.few.queued < 60 + 10
    assert 500 < store.many.queued <= 600 + 10
    for each in (store.few, store.many):
        assert 0 < each.claim_ms[0] <= each.claim_ms[1]
        assert each.rss_bytes > store.idle_rss_bytes / 2


def test_predictions_are_held_against_what_came(tmp_path: Path) -> None:
    sizes = completion.CompletionSizes(jobs=40, warm=10, tokens_per_s=1000.0)
    with House(tmp_path) as house:
        seen = completion.run(house, sizes, least_s=0.1)
    assert seen.jobs == 40
    assert seen.unpredicted == 0
    assert seen.median_error <= seen.p90_error


def test_a_file_passes_through_without_being_held_in_memory(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        seen = large_files.run(house, 64)
    assert seen.intact
    for way in (seen.in_, seen.out):
        assert way.peak_rss_bytes - seen.idle_rss_bytes < 48 * large_files.MEBIBYTE, seen


def test_first_tokens_are_timed_with_and_without_a_batch(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        seen = beside.run(house, beside.BesideSizes(rounds=1, seconds=1.0, settle_s=0.2))
    for times in seen.times:
        assert times.failed == 0
        for p50_ms, p99_ms in (times.alone_ms, times.with_batch_ms, times.elsewhere_ms):
            assert times.reading_s * 1000 < p50_ms <= p99_ms
