"""The comparison with peers, small: that all are measured, not how good they are."""

import pytest

from tests.bench.peers import report, tools
from tests.bench.peers.run import run
from tests.bench.peers.workloads import Scale
from tests.support import programs

pytestmark = pytest.mark.slow

_SMALL = Scale(
    seconds=0.5, streams=20, connections=8, stream_tokens=10, ramp_s=0.2, warm_s=0.1, body_bytes=5_000_000
)


@pytest.mark.skipif(tools.missing() is not None, reason=str(tools.missing()))
@pytest.mark.skipif(
    programs.find("nginx") is None, reason="no nginx (on Debian: apt-get install nginx-light)"
)
def test_ours_and_nginx_are_put_through_every_workload_without_an_error() -> None:
    seen = run(
        ["direct", "trunkline", "nginx"],
        _SMALL,
        1,
        only=["unary", "paced", "down", "up"],
        say=lambda line: None,
    )
    assert seen.failed == []
    for workload in seen.workloads:
        for peer in ("direct", "trunkline", "nginx"):
            figures = seen.of(peer, workload.name)
            assert figures is not None, (peer, workload.name)
            assert figures["errors"] == 0, (peer, workload.name)
    paced = seen.of("trunkline", "paced")
    assert paced is not None
    assert set(paced["cpu_us"]) == {"gateway", "agent"}
    assert "CPU µs/token, paced" in report.rows(seen)[0]
