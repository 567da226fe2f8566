"""The loads of ``tests/bench``, small: that they hold, not how fast. In full: ``tests/run bench``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import concurrent, decision, stalled, upload
from tests.bench.site import LoadSite, build
from tests.support.processes import House

pytestmark = pytest.mark.slow


async def test_every_stream_of_many_is_complete_and_keeps_its_pace(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        site = build(house, slots=256)
        seen = await concurrent.run(site, streams=150, tokens_per_s=10, seconds=3)
    assert seen.complete == seen.streams
    assert seen.peak_running == 150
    assert seen.gap_p50_s < 0.15, seen


async def test_clients_that_stop_reading_cost_what_was_granted_and_hold_up_nobody(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        site = build(house, slots=256, environment=stalled.ENVIRONMENT)
        seen = await stalled.run(site, stalled=30, readers=20, seconds=2, times=3)
    assert seen.readers_complete == seen.readers
    assert seen.gateway_growth_bytes < seen.bound_bytes, seen
    assert seen.agent_growth_bytes < seen.bound_bytes, seen
    assert seen.gap_p99_beside_s < max(0.15, 3 * seen.gap_p99_alone_s), seen


def test_a_decision_can_be_timed() -> None:
    seen = decision.run(deployments=100, decisions=20)
    assert seen.watched_us > 0


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadSite]:
    """A site whose tunnel is a slow link."""
    with House(tmp_path_factory.mktemp("shaped")) as house:
        yield build(house, slots=16, rate_mbit=upload.RATE_MBIT, delay_ms=10)


@pytest.mark.parametrize(
    ("down", "most"),
    [
        pytest.param(False, 2.0, id="upload"),  # PROTOCOL, Order on the wire
        pytest.param(True, 4.0, id="download"),  # shares the tokens' direction, and their place in the link
    ],
)
async def test_a_large_body_leaves_the_tokens_beside_it_their_pace(
    shaped: LoadSite, down: bool, most: float
) -> None:
    seen = await upload.run(shaped, size_bytes=4_000_000, streams=4, alone_s=3, down=down)
    assert seen.intact
    assert seen.ratio < most, seen
