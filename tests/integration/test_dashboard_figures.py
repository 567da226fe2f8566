"""The dashboard in a real browser before a staged gateway: the figures that it shows, and what it makes of
answers that are none."""

import asyncio
from typing import Any

from gateway.domain.aliases import read_targets
from tests.support.browser import IN_BROWSER, Browser, frames_taken
from tests.support.processes import until
from tests.support.staged_gateway import KEY, StagedGateway, fleet

pytestmark = IN_BROWSER


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


async def test_an_answer_that_is_none_is_told_in_words_and_signs_nobody_out(browser: Browser) -> None:
    """A proxy that answers with a page of its own, say while the gateway behind it is put in place."""
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.open(stage.url, KEY, "models")
        await page.wait_for_selector(".connection:has-text('Live')")
        html = "<!doctype html><p>One moment"
        await page.route("**/admin/**", lambda route: route.fulfill(body=html, content_type="text/html"))
        await page.evaluate("() => document.querySelector('tl-models').refresh()")
        await page.wait_for_selector("tl-models .notice.bad:has-text('none of a gateway')")
        await page.reload()
        await page.wait_for_selector(".signin .notice:has-text('none of a gateway')")
        await page.unroute("**/admin/**")
        await page.click("button:has-text('Try now')")
        await page.wait_for_selector("tl-models td:has-text('llama-3.1-70b')")


async def test_the_map_opens_the_host_that_was_told_of_when_others_join(browser: Browser) -> None:
    async with StagedGateway(fleet(3)) as stage:
        page = await browser.open(stage.url, KEY)
        await page.focus("tl-fleet .heat canvas")
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("ArrowRight")
        tip = "tl-fleet .heat .tip"
        assert "gpu-001" in await page.inner_text(tip)
        stage.delta(at=1790000001.0, agents={"a-first": {"status": "ready", "draining": False}})
        await page.wait_for_selector("tl-fleet td:has-text('a-first')")
        assert "gpu-001" in await page.inner_text(tip)
        await page.keyboard.press("Enter")
        await page.wait_for_selector("tl-host h1:text-is('gpu-001')")


async def test_requests_whose_end_was_left_out_stand_on_the_page_of_the_flow_no_longer(
    browser: Browser,
) -> None:
    snapshot = fleet(1)
    (deployment,) = snapshot["deployments"]
    snapshot["deployments"][deployment]["in_flight"] = 4
    of = {"at": 1.0, "tier": "batch", "model": "llama-3.1-70b", "deployment": deployment, "state": "running"}
    snapshot["requests"] = [{"id": f"r{number}", **of} for number in range(4)]  # the latest first
    async with StagedGateway(snapshot) as stage:
        page = await browser.open(stage.url, KEY, "flow")
        await page.wait_for_selector(".connection:has-text('Live')")
        begun = {**of, "id": "r4", "event": "begun"}
        now = {deployment: {"in_flight": 2}}
        stage.delta(at=1790000001.0, deployments=now, requests=[begun], requests_left_out=3)
        await frames_taken(page, 2)
        running = "() => [...document.querySelector('tl-flow').scene.running.keys()]"
        assert await page.evaluate(running) == ["r0", "r4"]
        await page.evaluate("location.hash = '#/alerts'")
        await page.evaluate("location.hash = '#/flow'")
        assert await page.evaluate(running) == ["r0", "r4"]


async def test_a_page_of_the_flow_that_cannot_be_seen_loses_no_requests(browser: Browser) -> None:
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.open(stage.url, KEY, "alerts")
        lost = await page.evaluate(
            """async () => {
                const { FlowScene } = await import("./js/flowscene.js");
                const [scene, state] = [new FlowScene(), { models: { m: {} }, deployments: { d: {} } }];
                scene.arrange(state, { width: 800, height: 400 });
                const ended = { event: "ended", state: "answered", model: "m", deployment: "d" };
                const requests = Array.from({ length: 50 }, (_, number) => ({ id: `r${number}`, ...ended }));
                for (let second = 0; second < 60; second++) scene.take({ requests }, state, second * 1000);
                return scene.lost;
            }"""
        )
        assert lost == 0


async def test_a_slider_leaves_targets_the_models_that_they_are(browser: Browser) -> None:
    targets = [
        {"model": "lab@site/llama", "version": None, "share": 0.9},
        {"model": "lab@site/llama", "version": "v@2", "share": 0.1},
    ]
    alias = {"name": "stable", "targets": targets, "changed_s": 1.0, "mirror": None, "fallback": []}
    answers: dict[str, Any] = {"/admin/aliases": {"aliases": [alias]}, "/admin/aliases/stable": alias}
    async with StagedGateway(fleet(1), answers) as stage:
        page = await browser.open(stage.url, KEY, "models")
        await page.locator(".alias input[type=range]").first.focus()
        await page.keyboard.press("ArrowLeft")
        await page.click(".alias button:has-text('Switch')")
        await page.wait_for_selector(".toast:has-text('stable stands for')")
    ((_, _, body),) = stage.acts
    read = [(each.model, each.version, each.weight) for each in read_targets(body["targets"])]
    assert read == [("lab@site/llama", None, 89), ("lab@site/llama", "v@2", 11)]


async def test_a_new_alias_replaces_none_that_is_there(browser: Browser) -> None:
    target = {"model": "m", "version": None, "share": 1.0}
    alias = {"name": "stable", "targets": [target], "changed_s": 1.0, "mirror": None, "fallback": []}
    async with StagedGateway(fleet(1), {"/admin/aliases": {"aliases": [alias]}}) as stage:
        page = await browser.open(stage.url, KEY, "models")
        await page.click("button:has-text('New alias')")
        await page.fill("dialog input[name=name]", "stable")
        await page.fill("dialog input[name=targets]", "other")
        await page.click("dialog button[type=submit]")
        await page.wait_for_selector("dialog .problem:has-text('stable is an alias already')")
    assert stage.acts == []


async def test_where_a_proxy_holds_the_stream_back_the_lists_are_asked(browser: Browser) -> None:
    lists: dict[str, Any] = {
        "/admin/agents": {"agents": [{"name": "gpu-1", "connected": True, "status": "READY"}]},
        "/admin/models": {"models": []},
        "/admin/processes": {"processes": [{"process": "gateway", "up": True}]},
    }
    async with StagedGateway(fleet(0), lists) as stage:
        held = stage.held["/admin/events"] = asyncio.Event()
        page = await browser.blank()
        await page.clock.install()
        await page.goto(f"{stage.url}/ui/")
        await page.fill("input[name=key]", KEY)
        async with page.expect_request("**/admin/events"):
            await page.click("button[type=submit]")
        await page.clock.fast_forward(16_000)
        await page.wait_for_selector(".connection:has-text('Polling')")
        await page.wait_for_selector("tl-fleet td:has-text('gpu-1')")
        held.set()


async def test_a_browser_that_keeps_nothing_signs_in_and_changes_the_theme(browser: Browser) -> None:
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.blank()
        await page.add_init_script(
            """for (const name of ["localStorage", "sessionStorage"]) {
                const get = () => { throw new DOMException("off", "SecurityError"); };
                Object.defineProperty(window, name, { get });
            }"""
        )
        await page.goto(f"{stage.url}/ui/")
        await page.fill("input[name=key]", KEY)
        await page.click("button[type=submit]")
        for theme in ("light", "dark", "system"):
            await page.click("button:has-text('Theme: ')")
            await page.wait_for_selector(f"button:has-text('Theme: {theme}')")
        await page.click("button:has-text('Sign out')")
        await page.wait_for_selector("input[name=key]")


async def test_a_page_that_cannot_be_seen_lets_go_of_its_stream_until_it_is_seen(browser: Browser) -> None:
    """A browser opens six connections to one gateway: with six tabs in the background a seventh had none."""
    async with StagedGateway(fleet(1)) as stage:
        page = await browser.blank()
        await page.clock.install()
        await page.goto(f"{stage.url}/ui/")
        await page.fill("input[name=key]", KEY)
        await page.click("button[type=submit]")
        await page.wait_for_selector(".connection:has-text('Live')")
        sight = """(hidden) => {
            Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        await page.evaluate(sight, True)
        await page.clock.fast_forward(61_000)
        await page.wait_for_selector(".connection:has-text('Paused')")
        await asyncio.to_thread(until, "the stream is let go of", lambda: stage.streams == 0)
        await page.evaluate(sight, False)
        await page.wait_for_selector(".connection:has-text('Live')")
        assert (stage.streams, stage.last_ids) == (1, [None, "a1-1"])
        gaps = await page.evaluate(
            """async () => {
                const { live } = await import("./js/live.js");
                return [...live.series.get("running")].map(Number.isNaN);
            }"""
        )
        assert gaps == [False, True, False]


async def test_two_clicks_on_older_lead_one_page_further(browser: Browser) -> None:
    job = {"status": "failed", "model": "m", "tenant": "acme", "key": "app", "created_at": 1.0, "attempts": 1}
    answers: dict[str, Any] = {
        "/admin/jobs": {"jobs": [{"id": "job-1", **job}], "next": "job-1"},
        "/admin/batches": {"batches": [], "next": None},
    }
    async with StagedGateway(fleet(1), answers) as stage:
        page = await browser.open(stage.url, KEY, "jobs")
        await page.wait_for_selector("tl-jobs td:has-text('job-1')")
        held = stage.held["/admin/jobs"] = asyncio.Event()
        before = await page.evaluate(
            """() => {
                const { older, before } = document.querySelector("tl-jobs").pages.jobs;
                older.click();
                older.click();
                return before;
            }"""
        )
        assert before == ["job-1"]
        held.set()
        await page.click("tl-jobs button:text-is('Newer')")
        await page.wait_for_selector("tl-jobs button:text-is('Newer')", state="hidden")


async def test_how_bad_an_alert_is_is_told_to_who_hears_the_page(browser: Browser) -> None:
    async with StagedGateway(fleet(6, 1, load=1.0)) as stage:
        stage.snapshot["agents"]["gpu-001"]["status"] = "away"
        page = await browser.open(stage.url, KEY, "alerts")
        for level, title in (("failure", "gpu-001 is away"), ("warning", "Requests wait for mistral-small")):
            alert = page.locator(".alert", has_text=title)
            await alert.get_by_role("img", name=level).wait_for()
