"""The dashboard in a real browser before a staged gateway: hostile names, lost streams, many deployments."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import IN_BROWSER, PHONE, Browser, frames_taken
from tests.support.hostile_answers import (
    HOSTILE,
    hostile_answers,
    hostile_changes,
    hostile_snapshot,
    hostile_whatif,
)
from tests.support.staged_gateway import KEY, StagedGateway, fleet

pytestmark = IN_BROWSER

_MODULES = Path(__file__).with_name("dashboard_modules.js")


async def test_no_text_from_outside_becomes_markup_or_runs(browser: Browser) -> None:
    async with StagedGateway(hostile_snapshot(), hostile_answers()) as stage:
        page = await browser.open(stage.url, KEY)
        await page.wait_for_selector("tl-fleet tbody tr")
        assert await page.locator("tl-fleet tbody tr").count() == len(HOSTILE)  # also those like __proto__
        stage.told["/admin/whatif"] = [("result", hostile_whatif())]
        routes = ["flow", "models", "requests", "jobs", "usage", "keys", "alerts", "settings", "whatif"]
        for args in [
            *([each] for each in routes),
            ["host", HOSTILE[0]],
            ["host", "__proto__"],
            ["request", HOSTILE[1]],
        ]:
            await page.evaluate(
                "parts => { location.hash = '/' + parts.map(encodeURIComponent).join('/') }", args
            )
            await page.wait_for_selector(f"tl-{args[0]} h1")
            await page.wait_for_selector("main :text('<img src=x'), main canvas", state="attached")
            stage.delta(at=1790000001.0, changes=hostile_changes())
            if args == ["whatif"]:
                await page.click("tl-whatif button[type=submit]")
                await page.wait_for_selector("tl-whatif .answer :text('<img src=x')", state="attached")
            assert (
                await page.locator(
                    "main img, main script, main iframe, main [onerror], main [style*=url]"
                ).count()
                == 0
            )
            assert await page.locator("main a[href^='javascript'], main a[href^='http']").count() == 0
        assert await page.evaluate("[window.hit, Object.prototype.status]") == [None, None]


async def test_markup_from_a_text_is_refused_by_the_browser_itself(browser: Browser) -> None:
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.open(stage.url, KEY)
        refused = await page.evaluate(
            """() => {
                const tries = [
                    () => { document.createElement("div").innerHTML = "<b>x</b>"; },
                    () => { document.createElement("script").src = "data:,x"; },
                ];
                return tries.map((one) => { try { one(); return false; } catch (error) { return true; } });
            }"""
        )
        browser.problems.clear()  # the console tells of each
        assert refused == [True, True]


async def test_a_lost_stream_is_told_tried_again_and_a_restart_is_noticed(browser: Browser) -> None:
    async with StagedGateway(fleet(3)) as stage:
        page = await browser.open(stage.url, KEY)
        await page.wait_for_selector(".connection:has-text('Live')")
        stage.delta(at=1790000001.0, agents={"gpu-001": {"status": "suspended"}})
        await page.wait_for_selector("tl-fleet td:has-text('suspended')")
        stage.refused["/admin/events"] = (500, "The gateway is mending itself.")
        stage.cut()
        await page.wait_for_selector("main .notice.warn:has-text('The gateway is mending itself.')")
        del stage.refused["/admin/events"]
        await page.wait_for_selector(".connection:has-text('Live')")
        assert stage.last_ids[:2] == [None, "a1-2"]
        stage.epoch = "b2"
        stage.cut()
        await page.wait_for_selector(".toast:has-text('The gateway was restarted')")
        assert await page.locator("tl-fleet tbody tr").count() == 3


async def test_without_the_stream_the_lists_are_asked(browser: Browser) -> None:
    agent = {
        "name": "gpu-1",
        "connected": True,
        "status": "READY",
        "labels": {},
        "gpus": [],
        "deployments": [],
    }
    lists: dict[str, Any] = {
        "/admin/agents": {"agents": [agent]},
        "/admin/models": {"models": []},
        "/admin/processes": {"processes": [{"process": "gateway", "up": True}]},
    }
    async with StagedGateway(fleet(0), lists) as stage:
        stage.refused["/admin/events"] = (503, "64 pages are open already.")
        page = await browser.open(stage.url, KEY)
        await page.wait_for_selector(".connection:has-text('Polling')")
        await page.wait_for_selector("tl-fleet td:has-text('gpu-1')")


async def test_a_revoked_key_leads_back_to_the_sign_in(browser: Browser) -> None:
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.open(stage.url, KEY, "models")
        await page.wait_for_selector(".connection:has-text('Live')")
        stage.refused["/admin/aliases"] = stage.refused["/metrics"] = (401, "This key was revoked.")
        await page.evaluate("location.hash = '#/alerts'")
        await page.evaluate("location.hash = '#/models'")
        await page.wait_for_selector(".signin .problem:has-text('This key was revoked.')")
        assert await page.evaluate("sessionStorage.length") == 0


async def test_an_empty_fleet_says_what_to_do_and_a_phone_needs_no_sideways_scrolling(
    browser: Browser,
) -> None:
    answers = hostile_answers()
    async with StagedGateway(fleet(0), answers) as stage:
        page = await browser.open(stage.url, KEY, size=PHONE)
        await page.wait_for_selector("tl-fleet .empty:has-text('No host has joined yet')")
        for name in ("flow", "models", "requests", "jobs", "usage", "keys", "alerts", "settings"):
            await page.evaluate(f"location.hash = '#/{name}'")
            await page.wait_for_selector(f"tl-{name} h1")
            shown = f"tl-{name} tbody tr, tl-{name} .empty, tl-{name} canvas"
            await page.wait_for_selector(shown, state="attached")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


async def test_the_keyboard_leads_everywhere(browser: Browser) -> None:
    async with StagedGateway(fleet(12, 2)) as stage:
        page = await browser.open(stage.url, KEY)
        await page.wait_for_selector("tl-fleet tbody tr")
        await page.focus("tl-fleet .heat canvas")
        for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
            await page.keyboard.press(key)
        assert "gpu-001" in await page.inner_text("tl-fleet .heat .tip")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("tl-host h1:has-text('gpu-001')")
        await page.keyboard.press("g")
        await page.keyboard.press("r")
        await page.wait_for_selector("tl-requests h1")
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.type") == "search"
        await page.keyboard.press("Escape")
        before = await page.evaluate("document.documentElement.dataset.theme")
        await page.keyboard.press("t")
        await page.keyboard.press("t")
        assert before == "light"
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_the_modules_compute_what_they_say(browser: Browser) -> None:
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.open(stage.url, KEY)
        found = await page.evaluate(_MODULES.read_text())
    assert found["quantiles"][:2] == [0.5, 0.75]
    assert found["csv"] == '"a,b",1.5,\'=1+1,"say ""x"""\r\n\'-2,-2,,"\n"\r\n'
    assert found["patched"] == '{"a":{"c":2,"e":{"f":1}},"d":[null],"__proto__":{"x":1}}'
    assert found.get("polluted") is None
    assert found["events"] == [["a-1", "delta", '{"a":\n1}'], ["", "message", "2"]]
    assert found["moved"] == [[80, 20], [0, 60, 40], [40, 60]]
    assert "".join(found["words"]).count("\N{NO-BREAK SPACE}") == 5, "a number keeps its unit"
    words = [each.replace("\N{NO-BREAK SPACE}", " ") for each in found["words"]]
    assert words == ["12.3 ms", "2.0 h", "80.0 GiB", "5.3 %", "1.23 M", "–"]


@pytest.mark.browser
async def test_a_thousand_deployments_that_all_change_each_second_cost_little(browser: Browser) -> None:
    """CPU of the process that draws: less than a tenth of a core at a delta each second."""
    snapshot = fleet(250, 4)
    async with StagedGateway(snapshot) as stage:
        page = await browser.open(stage.url, KEY)
        await page.wait_for_selector("tl-fleet tbody tr")
        before_s, deltas = await browser.renderers_cpu_s(), 20
        for turn in range(deltas):
            figures = {"utilisation": (turn % 10) / 10, "in_flight": turn % 8}
            stage.delta(at=1790000001.0 + turn, deployments=dict.fromkeys(snapshot["deployments"], figures))
            await frames_taken(page, turn + 2)
            await page.evaluate(
                "() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))"
            )
        assert (await browser.renderers_cpu_s() - before_s) / deltas < 0.1
        assert await page.locator("tl-fleet tbody tr").count() == 100  # and a button for more


@pytest.mark.browser
async def test_a_page_that_stays_open_keeps_no_more_than_it_says(browser: Browser) -> None:
    snapshot = fleet(40, 2)
    async with StagedGateway(snapshot) as stage:
        page = await browser.open(stage.url, KEY, "flow")
        await page.wait_for_selector(".connection:has-text('Live')")
        for turn in range(400):
            requests = [
                {"id": f"r{turn}-{n}", "event": "begun", "state": "running", "tier": "batch"}
                for n in range(50)
            ]
            change = {"at": 1.0, "of": "agent", "name": "gpu-001", "from": "a", "to": "b"}
            stage.delta(at=1790000001.0 + turn, requests=requests, changes=[change] * 5, flow=[])
        await frames_taken(page, 401)
        kept = await page.evaluate(
            """async () => {
                const { live } = await import("./js/live.js");
                const { scene } = document.querySelector("tl-flow");
                const points = live.series.get("running").count;
                const { particles, running } = scene;
                return [live.requests.size, live.changes.length, points, particles.length, running.size];
            }"""
        )
        assert kept[:3] == [500, 300, 180]
        assert kept[3] <= 400
        assert kept[4] <= 1000


async def test_an_act_that_takes_another_role_is_refused_in_plain_words(browser: Browser) -> None:
    """Also one that the page offered, because the key's role was changed meanwhile."""
    words = "This takes the role 'operator', and this key has the role 'viewer'"
    snapshot = fleet(2)
    for each in snapshot["deployments"].values():
        each["managed"] = True
    async with StagedGateway(snapshot, role="operator") as stage:
        page = await browser.open(stage.url, KEY, "models")
        stage.refused["/admin/models/llama-3.1-70b/evict"] = (403, words)
        await page.click("tl-models tr:has-text('llama-3.1-70b') button:has-text('Evict')")
        await page.click("dialog button[type=submit]")
        await page.wait_for_selector(f'dialog .problem:has-text("{words}")')
        await page.click("dialog button:has-text('Cancel')")
        stage.refused["/admin/agents/gpu-000/drain"] = (403, words)
        await page.evaluate("location.hash = '#/host/gpu-000'")
        await page.click("tl-host button:has-text('Drain')")
        await page.wait_for_selector(f'.toast.bad:has-text("{words}")')
