"""The loads of ``tests/bench``, small: that they hold, not how fast. In full: ``tests/run bench``."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.bench import concurrent, decision, stalled, upload
from tests.bench.site import LoadSite, build
from tests.support.processes import House

pytestmark = pytest.mark.slow


ROUNDS = 3
"""Measured again as often while it is too slow: what else runs on a machine disturbs, and never helps."""

T = TypeVar("T")


async def one_that(holds: Callable[[T], bool], measure: Callable[[], Awaitable[T]]) -> T:
    """The first round of which that holds, or the last."""
    for _ in range(ROUNDS - 1):
        if holds(seen := await measure()):
            return seen
    return await measure()


async def test_every_stream_of_many_is_complete_and_keeps_its_pace(tmp_path: Path) -> None:
    def paced(seen: concurrent.Concurrent) -> bool:
        assert seen.complete == seen.streams
        assert seen.peak_running == 150
        return seen.gap_p50_s < 0.15

    with House(tmp_path) as house:
        site = build(house, slots=256)
        seen = await one_that(paced, lambda: concurrent.run(site, streams=150, tokens_per_s=10, seconds=1.5))
    assert paced(seen), seen


async def test_clients_that_stop_reading_cost_what_was_granted_and_hold_up_nobody(tmp_path: Path) -> None:
    def unhindered(seen: stalled.Stalled) -> bool:
        assert seen.readers_complete == seen.readers
        assert seen.gateway_growth_bytes < seen.bound_bytes, seen
        assert seen.agent_growth_bytes < seen.bound_bytes, seen
        return seen.gap_p99_beside_s < max(0.15, 3 * seen.gap_p99_alone_s)

    with House(tmp_path) as house:
        site = build(house, slots=256, environment=stalled.ENVIRONMENT)
        seen = await one_that(
            unhindered, lambda: stalled.run(site, stalled=30, readers=20, seconds=1, times=3)
        )
    assert unhindered(seen), seen


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
    def paced(seen: upload.Beside) -> bool:
        assert seen.intact
        return seen.ratio < most

    seen = await one_that(
        paced, lambda: upload.run(shaped, size_bytes=2_500_000, streams=4, alone_s=1.5, warm_s=0.5, down=down)
    )
    assert paced(seen), seen
