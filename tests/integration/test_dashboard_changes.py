"""The dashboard in a real browser before a staged gateway: what is said, kept and asked again when something
changes while a page is open."""

import asyncio
import math
from typing import Any

import pytest

from tests.support.browser import IN_BROWSER, Browser, frames_taken
from tests.support.hostile_answers import hostile_answers, hostile_whatif
from tests.support.staged_gateway import KEY, StagedGateway, fleet

pytestmark = IN_BROWSER


_RATE = "async () => (await import('./js/live.js')).live.endedPerS"


async def test_the_alerts_of_a_fleet_that_is_well_wait_for_the_gateway_only_until_it_speaks(
    browser: Browser,
) -> None:
    async with StagedGateway(fleet(2)) as stage:
        page = await browser.open(stage.url, KEY, "alerts")
        await page.wait_for_selector("tl-alerts .empty:has-text('Nothing calls for a look')")


async def test_a_delta_of_everything_leaves_the_requests_that_run_on_the_page_of_the_flow(
    browser: Browser,
) -> None:
    snapshot = fleet(2)
    of = {
        "at": 1.0,
        "tier": "batch",
        "model": "llama-3.1-70b",
        "deployment": next(iter(snapshot["deployments"])),
    }
    snapshot["requests"] = [{"id": f"r{number}", "state": "running", **of} for number in range(3)]
    async with StagedGateway(snapshot) as stage:
        page = await browser.open(stage.url, KEY, "flow")
        await page.wait_for_selector(".connection:has-text('Live')")
        begun = {"id": "r3", "state": "running", "event": "begun", **of}
        stage.delta(at=2.0, agents={"gpu-001": {"streams": 2}}, models={"m": {"slots": 1}}, requests=[begun])
        await frames_taken(page, 2)
        running = "() => [...document.querySelector('tl-flow').scene.running.keys()].sort()"
        assert await page.evaluate(running) == ["r0", "r1", "r2", "r3"]
        stage.cut()
        await frames_taken(page, 3)
        assert await page.evaluate(running) == ["r0", "r1", "r2"]


async def test_a_rate_is_of_requests_that_the_same_processes_counted(browser: Browser) -> None:
    """A process that falls silent takes what it counted with it, and brings it back."""
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.open(stage.url, KEY)
        await page.wait_for_selector("tl-fleet tbody tr")
        steps: list[tuple[int, dict[str, Any]]] = [
            (140, {}),
            (40, {"processes": {"w2": {"up": False}}}),
            (44, {}),
            (40, {}),
            (5040, {"processes": {"w2": {"up": True}}}),
            (5042, {}),
        ]
        rates = []
        for number, (ended, more) in enumerate(steps):
            stage.delta(at=1790000001.0 + number, totals={"ended": ended}, **more)
            await frames_taken(page, number + 2)
            rates.append(await page.evaluate(_RATE))
        assert [None if math.isnan(rate) else rate for rate in rates] == [50, None, 4, None, None, 2]
        stage.refused["/admin/events"] = (503, "64 pages are open already.")
        stage.answers |= {"/admin/models": {"models": []}, "/admin/processes": {"processes": []}}
        stage.cut()
        await page.wait_for_selector(".connection:has-text('Polling')")
        assert math.isnan(await page.evaluate(_RATE))


async def test_after_the_lists_the_stream_begins_with_a_snapshot(browser: Browser) -> None:
    """The deltas since the last event of before would leave out what the lists do not say."""
    lists: dict[str, Any] = {"/admin/models": {"models": []}, "/admin/processes": {"processes": []}}
    async with StagedGateway(fleet(1), lists) as stage:
        page = await browser.open(stage.url, KEY)
        await page.wait_for_selector(".connection:has-text('Live')")
        stage.refused["/admin/events"] = (503, "64 pages are open already.")
        stage.cut()
        await page.wait_for_selector(".connection:has-text('Polling')")
        del stage.refused["/admin/events"]
        stage.refused["/admin/models"] = (500, "The gateway is mending itself.")
        await page.wait_for_selector(".connection:has-text('Live')")
        assert stage.last_ids == [None, None]


async def test_a_page_that_asks_at_once_gives_up_what_it_asked_before_and_asks_on_once(
    browser: Browser,
) -> None:
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.open(stage.url, KEY, "alerts")
        given_up, timers = await page.evaluate(
            """async () => {
                const [asked, timers, { setTimeout }] = [[], [], window];
                window.setTimeout = (doing, ms) => (timers.push(ms), setTimeout(doing, ms));
                const asking = (signal) => new Promise((answered) => asked.push({ signal, answered }));
                const now = document.querySelector("tl-alerts").every(4000, asking);
                const turns = [now(), now()];
                for (const { answered } of asked) answered();
                await Promise.all(turns);
                window.setTimeout = setTimeout;
                return [asked.map(({ signal }) => signal.aborted), timers.filter((ms) => ms === 4000000)];
            }"""
        )
        assert given_up == [True, True, False]
        assert len(timers) == 1


@pytest.mark.parametrize("answers", [True, False])
async def test_who_signs_out_while_the_gateway_is_asked_again_stays_signed_out(
    browser: Browser, answers: bool
) -> None:
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.blank()
        await page.goto(f"{stage.url}/ui/")
        stage.refused["/admin/self"] = (503, "The gateway is mending itself.")
        await page.fill("input[name=key]", KEY)
        await page.click("button[type=submit]")
        await page.wait_for_selector(".notice:has-text('The gateway is mending itself.')")
        stage.held["/admin/self"] = asyncio.Event()
        async with page.expect_request("**/admin/self"):
            await page.click("button:has-text('Try now')")
        await page.click("button:has-text('Sign out')")
        if answers:
            del stage.refused["/admin/self"]
        async with page.expect_response("**/admin/self") as answered:
            stage.held["/admin/self"].set()
        await (await answered.value).finished()
        await page.evaluate("() => new Promise((done) => setTimeout(done))")
        assert await page.locator("input[name=key]").count() == 1
        assert await page.evaluate("sessionStorage.length") == 0


async def test_a_dialog_that_was_left_when_all_was_sent_tells_what_became_of_it(browser: Browser) -> None:
    """A secret is told once: a key that was made and is not shown would be lost."""
    made = {"keys": [], "name": "ci", "key": "sk-tl-made"}
    answers: dict[str, Any] = {
        "/admin/keys": made,
        "/admin/tenants": {"tenants": []},
        "/admin/tokens": {"tokens": []},
    }
    async with StagedGateway(fleet(1), answers) as stage:
        page = await browser.open(stage.url, KEY, "keys")
        for refused in (False, True):
            if refused:
                stage.refused["/admin/keys"] = (409, "The name is taken.")
            await page.click("button:has-text('New key')")
            await page.fill("dialog input[name=name]", "ci")
            held = stage.held["/admin/keys"] = asyncio.Event()
            async with page.expect_request("**/admin/keys"):
                await page.click("dialog button[type=submit]")
            await page.keyboard.press("Escape")
            await page.wait_for_selector("dialog", state="detached")
            held.set()
            if refused:
                await page.wait_for_selector(".toast.bad:has-text('The name is taken.')")
            else:
                await page.wait_for_selector("dialog .secret-text:text-is('sk-tl-made')")
                await page.click("dialog button:has-text('I have stored it')")
                await page.wait_for_selector("dialog", state="detached")


async def test_a_name_with_steps_in_it_leads_to_no_other_record(browser: Browser) -> None:
    """An operator may name an alias so; an admin who removes it would revoke a host."""
    name = "../agents/gpu-000"
    target = {"model": "m", "version": None, "weight": 1.0, "share": 1.0}
    alias = {"name": name, "targets": [target], "changed_s": 1.0, "mirror": None, "fallback": []}
    async with StagedGateway(fleet(1), {"/admin/aliases": {"aliases": [alias]}}) as stage:
        page = await browser.open(stage.url, KEY, "models")
        await page.click(".alias button:has-text('Remove')")
        await page.click("dialog button[type=submit]")
        await page.wait_for_selector("dialog .problem:has-text('No browser can ask for this name')")
        assert stage.acts == []


async def test_when_replayed_requests_came_is_told_in_one_zone(browser: Browser) -> None:
    async with StagedGateway(fleet(1), hostile_answers()) as stage:
        stage.told["/admin/whatif"] = [("result", hostile_whatif())]
        page = await browser.open(stage.url, KEY, "whatif", zone="Asia/Tokyo")
        await page.click("tl-whatif button[type=submit]")
        told = await page.inner_text("tl-whatif .answer .notice")
        assert "1 request from 2026-09-21 14:13 UTC to 2026-09-21 15:13 UTC" in told


async def test_a_time_of_another_day_has_its_date(browser: Browser) -> None:
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.open(stage.url, KEY, "alerts", zone="Asia/Tokyo")
        await page.clock.set_fixed_time("2026-11-30T12:00:00Z")
        clock = "async (at) => (await import('./js/format.js')).clock(Date.parse(at) / 1000)"
        days = ("2026-11-29T14:30:00Z", "2026-11-29T15:30:00Z", "2026-12-02T00:00:00Z")
        told = [await page.evaluate(clock, day) for day in days]
        assert told == ["29 Nov 23:30:00", "00:30:00", "2 Dec 09:00:00"]


async def test_rows_that_have_not_come_yet_are_neither_missing_nor_those_of_another_choice(
    browser: Browser,
) -> None:
    used = {
        "requests": 7,
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "completion_tokens": 1,
        "gpu_s": 1,
        "cost": 1,
    }
    answers: dict[str, Any] = {"/admin/usage": {"usage": [{"tenant": "acme", **used}], "next": None}}
    async with StagedGateway(fleet(1), answers) as stage:
        held = stage.held["/admin/usage"] = asyncio.Event()
        page = await browser.open(stage.url, KEY, "usage")
        csv, empty = "tl-usage button:text-is('CSV')", page.locator("tl-usage .empty")
        assert await page.locator(f"{csv}:disabled").count() == 1
        assert await empty.count() == 0
        held.set()
        await page.wait_for_selector("tl-usage td:has-text('acme')")
        held.clear()
        await page.click("tl-usage button:text-is('Model')")
        assert (
            await page.locator(f"{csv}:disabled").count() == 1
        )  # those of tenants, under the head of models
        assert await empty.count() == 0
        stage.answers["/admin/usage"] = {"usage": [], "next": None}
        held.set()
        await page.wait_for_selector(f"{csv}:enabled")
        assert await empty.count() == 1


async def test_a_row_keeps_the_focus_when_one_before_it_goes(browser: Browser) -> None:
    rows = [{"id": f"r{number}", "at": 1.0, "state": "running"} for number in range(3)]
    async with StagedGateway(fleet(1), {"/admin/requests": {"requests": rows}}) as stage:
        page = await browser.open(stage.url, KEY, "requests")
        await page.focus("tl-requests a[href='#/request/r2']")
        stage.answers["/admin/requests"] = {"requests": rows[1:]}
        await page.evaluate("() => document.querySelector('tl-requests').refresh()")
        assert await page.locator("tl-requests tbody tr").count() == 2
        assert await page.evaluate("document.activeElement.getAttribute('href')") == "#/request/r2"


async def test_whose_key_is_refused_leaves_no_question_and_no_figures_to_who_signs_in_next(
    browser: Browser,
) -> None:
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.open(stage.url, KEY, "models")
        await page.wait_for_selector(".connection:has-text('Live')")
        await page.click("button:has-text('New alias')")
        stage.refused["/admin/aliases"] = (401, "This key was revoked.")
        await page.evaluate("() => document.querySelector('tl-models').refresh()")
        await page.wait_for_selector(".signin .problem:has-text('This key was revoked.')")
        kept = await page.evaluate(
            """async () => {
                const { live } = await import("./js/live.js");
                return [live.frames, Object.keys(live.state.agents), live.lastId];
            }"""
        )
        assert kept == [0, [], ""]
        await page.wait_for_selector("dialog", state="detached")
        await page.fill("input[name=key]", KEY)
        stage.refused.clear()
        await page.click("button[type=submit]")
        await page.wait_for_selector("tl-models td:has-text('llama-3.1-70b')")
        assert stage.last_ids == [None, None]


async def test_the_lists_tell_deployments_of_one_model_apart_and_which_can_be_loaded(
    browser: Browser,
) -> None:
    at = {"version": "", "running": 1, "waiting": 0, "kv_use": None, "reason": "", "load_progress": None}
    loaded = [
        {**at, "id": f"e{n}/m", "model": "m", "status": "loaded", "slots": 4, "managed": True} for n in (0, 1)
    ]
    out = {**at, "id": "on/n", "model": "n", "status": "loadable", "slots": 0, "running": 0, "managed": True}
    agent = {
        "name": "gpu-1",
        "connected": True,
        "status": "READY",
        "deployments": [*loaded, out],
        "labels": {},
    }
    serving = [
        {"agent": "gpu-1", "deployment": f"gpu-1/e{n}/m", "slots": 4, "in_flight": n, "healthy": True}
        for n in (0, 1)
    ]
    counts = {"waiting": 0, "slots": 0, "in_flight": 0}
    models = [
        {**counts, "id": "m", "slots": 8, "in_flight": 1, "deployments": serving},
        {**counts, "id": "n", "deployments": []},
    ]
    lists: dict[str, Any] = {
        "/admin/agents": {"agents": [agent]},
        "/admin/models": {"models": models},
        "/admin/processes": {"processes": [{"process": "gateway", "up": True}]},
    }
    async with StagedGateway(fleet(0), lists) as stage:
        stage.refused["/admin/events"] = (503, "64 pages are open already.")
        page = await browser.open(stage.url, KEY)
        await page.wait_for_selector("tl-fleet tbody tr:has-text('gpu-1'):has-text('1/8')")
        await page.evaluate("location.hash = '#/models'")
        await page.wait_for_selector("tl-models tr:has-text('not loaded') button:has-text('Load')")
        await page.wait_for_selector("tl-models tr:has-text('ready at 2') button:has-text('Evict')")


async def test_the_page_of_a_host_that_comes_and_goes_lets_go_of_charts_that_were_replaced(
    browser: Browser,
) -> None:
    async with StagedGateway(fleet(2)) as stage:
        page = await browser.open(stage.url, KEY, "host/gpu-001")
        await page.wait_for_selector("tl-host figure canvas")
        await page.evaluate("() => { window.first = document.querySelector('tl-host').charts.get('use 0') }")
        gpu = stage.snapshot["agents"]["gpu-001"]["gpus"]["0"]
        stage.delta(at=1790000001.0, agents={"gpu-001": {"gpus": {"0": None}}})
        await page.wait_for_selector("tl-host .empty:has-text('No GPU is reported')")
        stage.delta(at=1790000002.0, agents={"gpu-001": {"gpus": {"0": gpu}}})
        await page.wait_for_selector("tl-host figure canvas")
        shown = "document.querySelector('tl-host').charts.get('use 0').painter.signal.aborted"
        assert await page.evaluate(f"[window.first.painter.signal.aborted, {shown}]") == [True, False]


async def test_the_command_for_a_host_names_the_path_that_the_gateway_is_below(browser: Browser) -> None:
    made = {"tokens": [], "token": "tl-join", "uses_allowed": 1, "expires_s": 1.0}
    answers: dict[str, Any] = {
        "/admin/keys": {"keys": []},
        "/admin/tenants": {"tenants": []},
        "/admin/tokens": made,
    }
    async with StagedGateway(fleet(0), answers, below="/gpu") as stage:
        page = await browser.open(stage.url, KEY)
        command = f"trunkline agent --gateway {stage.url} --join TOKEN"
        assert stage.url.endswith("/gpu")
        await page.wait_for_selector(f"tl-fleet pre:text-is({command!r})")
        await page.evaluate("location.hash = '#/keys'")
        await page.click("button:has-text('New token')")
        await page.click("dialog button[type=submit]")
        await page.wait_for_selector(f"dialog:has(.secret-text):has-text({command!r})")


async def test_a_button_that_is_pressed_while_its_row_changes_does_what_it_says(browser: Browser) -> None:
    snapshot = fleet(2)
    for each in snapshot["deployments"].values():
        each["managed"] = True
    async with StagedGateway(snapshot) as stage:
        page = await browser.open(stage.url, KEY, "models")
        await page.hover("tl-models tr:has-text('llama-3.1-70b') button:has-text('Evict')")
        await page.mouse.down()
        stage.delta(at=1790000001.0, models={"llama-3.1-70b": {"waiting": 77}})
        await page.wait_for_selector("tl-models tr:has-text('llama-3.1-70b') td:text-is('77')")
        await page.mouse.up()
        await page.wait_for_selector("dialog h2:text-is('Evict llama-3.1-70b?')")


async def test_what_changes_each_second_leaves_links_and_buttons_in_focus(browser: Browser) -> None:
    async with StagedGateway(fleet(6, 1, load=1.0)) as stage:
        page = await browser.open(stage.url, KEY, "alerts")
        await page.focus("tl-alerts a:has-text('Requests wait for mistral-small')")
        stage.delta(at=1790000001.0, models={"mistral-small": {"oldest_s": 15.0}})
        await page.wait_for_selector("tl-alerts p:has-text('the first for 15.0 s')")
        assert await page.evaluate("document.activeElement.textContent") == "Requests wait for mistral-small"
        await page.evaluate("location.hash = '#/host/gpu-001'")
        await page.focus("tl-host button:text-is('Drain')")
        stage.delta(at=1790000002.0, agents={"gpu-001": {"streams": 77}})
        await page.wait_for_selector("tl-host dd:text-is('77')")
        assert await page.evaluate("document.activeElement.textContent") == "Drain"
        stage.delta(at=1790000003.0, agents={"gpu-001": {"draining": True}})
        await page.wait_for_selector("tl-host button:text-is('Give it work again')")
        assert await page.evaluate("document.activeElement.textContent") == "Give it work again"
