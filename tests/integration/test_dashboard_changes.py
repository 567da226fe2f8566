"""The dashboard in a real browser before a staged gateway: what is said, kept and asked again when something
changes while a page is open."""

from collections.abc import AsyncIterator

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


async def test_the_alerts_of_a_fleet_that_is_well_wait_for_the_gateway_only_until_it_speaks(
    browser: Browser,
) -> None:
    async with StagedGateway(fleet(2)) as stage:
        page = await browser.open(stage.url, KEY, "alerts")
        await page.wait_for_selector("tl-alerts .empty:has-text('Nothing calls for a look')")
