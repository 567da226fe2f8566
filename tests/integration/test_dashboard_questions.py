"""A newcomer's five questions, each answered on the dashboard in under three clicks (docs/dashboard.md).
The last needs a real gateway, which has served requests; the others have a staged one."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from tests.integration.asking import ask_at_once, logged_answers
from tests.integration.conftest import MODEL, Site
from tests.support.browser import IN_BROWSER, Browser
from tests.support.processes import until
from tests.support.staged_gateway import KEY, StagedGateway, fleet

pytestmark = IN_BROWSER

REQUESTS = 16


class Clicks:
    """A page on which clicks are counted."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.done = 0

    async def click(self, selector: str) -> None:
        await self.page.click(selector)
        self.done += 1

    async def answered(self, selector: str) -> None:
        """What is looked for can be seen, after fewer than three clicks."""
        await self.page.wait_for_selector(selector)
        assert self.done < 3


async def test_why_is_it_slow_now_takes_two_clicks(browser: Browser) -> None:
    async with StagedGateway(fleet(6, 1, load=1.0)) as stage:
        clicks = Clicks(await browser.open(stage.url, KEY))
        await clicks.click("nav.pages a:has-text('Alerts')")
        await clicks.answered("tl-alerts :text('12 wait, the first for 14.0 s')")
        await clicks.click("tl-alerts a:has-text('Requests wait for mistral-small')")
        await clicks.answered("tl-models tr:has-text('mistral-small') td:has-text('12, 14.0 s')")


async def test_where_is_a_request_takes_one_click(browser: Browser) -> None:
    record = {
        **{"id": "req-7", "at": 1790000000.0, "state": "running", "status": None, "error": None},
        **{"model": "qwen-2.5-32b", "route": "chat", "tier": "standard", "streaming": True},
        **{"tenant": "acme", "key": "app", "agent": "gpu-002", "process": "gateway", "queued_s": 14.2},
        **{
            "first_byte_s": None,
            "total_s": 15.0,
            "words": ["It runs at gpu-002 for 0.8 s."],
            "decisions": [],
        },
    }
    answers: dict[str, Any] = {
        "/admin/requests": {"requests": [], "next": None, "kept": {}},
        "/admin/requests/req-7": record,
    }
    async with StagedGateway(fleet(3), answers) as stage:
        clicks = Clicks(await browser.open(stage.url, KEY))
        await clicks.click("nav.pages a:has-text('Requests')")
        await clicks.page.get_by_label("Open the request of this id").fill("req-7")
        await clicks.page.keyboard.press("Enter")
        await clicks.answered("tl-request li:has-text('It runs at gpu-002')")


async def test_who_spends_most_takes_one_click(browser: Browser) -> None:
    names = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "gpu_s", "cost")
    used = [
        {"tenant": tenant} | dict(zip(names, (many, 10, 10, 0, 5.0, cost), strict=True))
        for tenant, many, cost in (("busy", 900, 1.5), ("dear", 20, 70.25), ("small", 1, 0.01))
    ]
    async with StagedGateway(fleet(1), {"/admin/usage": {"usage": used, "next": None}}) as stage:
        clicks = Clicks(await browser.open(stage.url, KEY))
        await clicks.click("nav.pages a:has-text('Usage')")
        await clicks.answered("tl-usage tbody tr:first-child:has-text('dear'):has-text('70.25')")


async def test_which_host_is_sick_takes_no_click_and_why_takes_one(browser: Browser) -> None:
    async with StagedGateway(fleet(150)) as stage:
        clicks = Clicks(await browser.open(stage.url, KEY))
        await clicks.answered("tl-fleet tbody tr:first-child:has-text('gpu-011')")
        await clicks.click("tl-fleet tbody tr:first-child a")
        await clicks.answered("tl-host td:has-text('out of memory')")


async def test_what_two_more_l4s_would_bring_takes_two_clicks(
    browser: Browser, new_site: Callable[..., Site]
) -> None:
    """Requests of a real gateway, most of which had to wait for one of two slots."""
    site = await asyncio.to_thread(new_site, "--slots", "2")
    with Store.open(site.gateway.state) as store:
        viewer = store.keys.create("looks", "operators", time.time(), role=AdminRole.VIEWER)
    await ask_at_once(site, REQUESTS)
    await asyncio.to_thread(until, "the audit log has them", lambda: logged_answers(site.gateway) == REQUESTS)
    clicks = Clicks(await browser.open(site.gateway.url, viewer))
    await clicks.click("nav.pages a:has-text('What if')")
    await clicks.click("tl-whatif button:has-text('2 more l4')")
    await clicks.answered(f"tl-whatif .answer :text('With 2 more deployments of {MODEL} on l4')")
    assert f"{REQUESTS} requests from" in await clicks.page.inner_text("tl-whatif .answer .notice")
    row = clicks.page.locator("tl-whatif .answer tr:has(th:text-is('In the queue p90'))")
    assert "better" in await row.inner_text()
    row = clicks.page.locator("tl-whatif .answer tr:has(th:text-is('Deployments'))")
    assert (await row.locator("td").all_inner_texts())[:3] == ["1", "1", "3"]
