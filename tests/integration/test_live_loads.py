"""The loads that measure a whole site by scripted engines, small: that they do, not how good it is."""

from pathlib import Path

import pytest

from gateway.tools.simulate.inputs import Job
from tests.bench import live, revocation
from tests.support.processes import House

pytestmark = pytest.mark.slow


def test_a_trace_is_replayed_on_engines_of_several_speeds() -> None:
    jobs = [Job(at_s=0.3 * number, input_tokens=100, output_tokens=40) for number in range(10)]
    (seen,) = live.run(jobs, 2.0, ["round-robin"]).seen
    assert (seen.policy, seen.requests, seen.failed) == ("round-robin", 10, 0)
    assert 0 < seen.first_p50_s <= seen.first_p99_s <= seen.whole_p99_s
    assert len(seen.utilisation) == len(live.SPEEDS)
    assert seen.utilisation_cv > 0


def test_the_last_request_of_who_is_revoked_is_found(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        seen = revocation.run(house, keys=1, agents=1)
    for last_ms in (*seen.keys_ms, *seen.agents_ms):
        assert -1000 < last_ms < 1000, seen
