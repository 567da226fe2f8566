"""The dashboard in a real browser before a staged gateway: the figures that it shows, and what it makes of
answers that are none."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.browser import Browser, chromium, missing_browser
from tests.support.staged_gateway import KEY, StagedGateway, fleet

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(missing_browser() is not None, reason=missing_browser() or ""),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened
        assert opened.problems == []


@pytest_asyncio.fixture(loop_scope="module")
async def browser(opened: Browser) -> AsyncIterator[Browser]:
    yield opened
    await opened.close_pages()


async def test_limits_are_told_as_they_were_set(browser: Browser) -> None:
    limits = {
        "tpm": 123456,
        "gpu_seconds_per_day": 0.4,
        "money_per_day": 1.125,
        "queue_share": 0.07,
        "weight": 1.5,
    }
    answers: dict[str, Any] = {
        "/admin/keys": {"keys": []},
        "/admin/tenants": {"tenants": [{"name": "acme", "changed_s": 1.0, **limits}]},
        "/admin/tokens": {"tokens": []},
    }
    async with StagedGateway(fleet(1), answers) as stage:
        page = await browser.open(stage.url, KEY, "keys")
        told = await page.inner_text("tl-keys tr:has-text('acme') td:nth-child(2)")
        assert told == (
            "123,456 tokens/min, 0.4 GPU s/day, costs of 1.125 a day, 7 % of the queue, weight 1.5"
        )
