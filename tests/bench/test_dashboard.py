"""What the dashboard costs, once and small."""

import json
from pathlib import Path

import pytest

from tests.bench.dashboard import PAGES, DashboardSizes, run
from tests.bench.peers import tools
from tests.support.browser import missing_browser
from tests.support.processes import House

MISSING = tools.missing() or missing_browser()


@pytest.mark.skipif(MISSING is not None, reason=MISSING or "")
def test_every_page_is_measured_under_load(tmp_path: Path) -> None:
    sizes = DashboardSizes(
        agents=2, requests_per_min=1200, seconds=0.25, tokens=2, heap_frames=20, settle_s=0.05
    )
    with House(tmp_path) as house:
        cost = run(house, sizes)
    assert cost.deployments == 4
    assert tuple(page.page for page in cost.pages) == PAGES
    assert all(page.main_ms_per_frame > page.script_ms_per_frame > 0 for page in cost.pages)
    assert [frames for frames, _ in cost.heap_mib] == [2, 10, 20]
    assert cost.gateway_with_page > 0
    assert str(cost).count("\n") == len(PAGES) + 3
    assert json.loads(cost.to_json())["requests_per_min"] == 1200
