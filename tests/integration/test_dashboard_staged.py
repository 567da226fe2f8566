"""The dashboard in a real browser before a staged gateway: hostile names, lost streams, many deployments."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.browser import PHONE, Browser, chromium, missing_browser
from tests.support.staged_gateway import KEY, StagedGateway, fleet

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(missing_browser() is not None, reason=missing_browser() or ""),
]

_MODULES = Path(__file__).with_name("dashboard_modules.js")

HOSTILE = (
    "<img src=x onerror=window.hit=1>",
    '"><script>window.hit=1</script>',
    "__proto__",
    "constructor",
    "javascript:window.hit=1",
    "{{7*7}}${window.hit=1}",
    "\u202egpj.exe\u0000\n=cmd|' /C calc'!A0",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened
        assert opened.problems == []


def hostile_answers() -> dict[str, Any]:
    """Every text that can come from outside, hostile, for every page."""
    request = {
        **dict.fromkeys(("model", "alias", "tenant", "key", "agent", "deployment", "route"), HOSTILE[0]),
        **{"id": HOSTILE[1], "at": 1790000000.0, "state": HOSTILE[0], "status": 500, "error": HOSTILE[1]},
        **{"tier": HOSTILE[0], "queued_s": 1.0, "first_byte_s": None, "total_s": 2.0, "attempts": 1},
        **{"tokens_in": None, "tokens_out": None, "slow": True, "streaming": True, "process": HOSTILE[0]},
    }
    named = {"code": HOSTILE[0], "words": HOSTILE[1]}
    candidate = {"deployment": HOSTILE[0], "chosen": False, "excluded": named, "slots": 1, "in_flight": 0}
    decision = {"deployment": HOSTILE[0], "why": named, "candidates": [candidate], "outcome": named}
    record = {**request, "words": list(HOSTILE), "decisions": [decision], "queue": {"reasons": [named]}}
    target = {"model": HOSTILE[0], "version": HOSTILE[1], "weight": 1.0, "share": 1.0}
    alias = {"name": HOSTILE[0], "targets": [target], "changed_s": 1.0, "mirror": None, "fallback": [target]}
    key = {"id": "1", "name": HOSTILE[0], "tenant": HOSTILE[1], "state": "active", "models": list(HOSTILE)}
    whose = {"tenant": HOSTILE[0], "key": HOSTILE[1], "key_id": HOSTILE[2], "custom_id": HOSTILE[0]}
    job = {
        **whose,
        **{"id": HOSTILE[0], "status": "failed", "model": HOSTILE[1], "error": HOSTILE[0]},
        **{"created_at": 1, "finished_at": 2, "attempts": 1, "progress": None, "predicted_cost": None},
    }
    running = job | {"id": HOSTILE[1], "status": "running", "progress": 0.5, "progress_text": HOSTILE[0]}
    batch = {
        **whose,
        **{"id": HOSTILE[0], "status": "failed", "endpoint": HOSTILE[1], "errors": list(HOSTILE)},
        **{"request_counts": {"total": 0, "completed": 0, "failed": 0}, "created_at": 1, "failed_at": 2},
    }
    used = {
        "requests": 1,
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "cached_tokens": 0,
        "gpu_s": 1,
        "cost": 1,
    }
    engine = {
        "name": HOSTILE[0],
        "kind": HOSTILE[1],
        "status": "failed",
        "reason": HOSTILE[0],
        "models": HOSTILE,
    }
    agents = [{"name": name, "connected": True, "models": HOSTILE, "engines": [engine]} for name in HOSTILE]
    return {
        "/admin/requests": {
            "requests": [request],
            "next": None,
            "kept": {},
            "why_missing": {HOSTILE[0]: "x"},
        },
        f"/admin/requests/{HOSTILE[1]}": record,
        "/admin/aliases": {"aliases": [alias]},
        "/admin/keys": {"keys": [key]},
        "/admin/tenants": {"tenants": [{"name": HOSTILE[0], "changed_s": 1.0}]},
        "/admin/tokens": {"tokens": []},
        "/admin/settings": {"settings": [{"path": HOSTILE[0], "value": HOSTILE[1], "set": True}]},
        "/admin/usage": {"usage": [{"tenant": name, **used} for name in HOSTILE], "next": None},
        "/admin/whatif": hostile_choices(),
        "/admin/jobs": {"jobs": [job, running], "next": HOSTILE[0]},
        "/admin/batches": {"batches": [batch], "next": None},
        "/admin/agents": {"agents": agents},
    }


def hostile_choices() -> dict[str, Any]:
    model = {
        "model": HOSTILE[0],
        "slots": 1,
        "deployments": 1,
        "devices": {HOSTILE[0]: 1},
        "policy": HOSTILE[1],
    }
    return {
        **{
            "models": [model, {**model, "model": HOSTILE[1]}],
            "policies": list(HOSTILE),
            "policy": HOSTILE[0],
        },
        **{"devices": [{"device": HOSTILE[1]}], "queue": {"max_requests": 1, "max_wait_s": 1}},
        **{"level": {"first_token_s": 2, "token_s": 0.1}, "limits": {"deployments": 10}},
    }


def hostile_whatif() -> dict[str, Any]:
    ranks = {"p50": 1.0, "p90": 2.0, "p99": 3.0}
    figures: dict[str, Any] = dict.fromkeys(("requests", "answered", "refused", "failed", "cancelled"), 1)
    figures |= dict.fromkeys(("slo_kept", "utilisation", "deployments", "slots", "gpu_hours", "cost"), 1)
    figures |= {"first_token_s": ranks, "queued_s": ranks, "output_tokens_per_s": 1.0}
    three = dict.fromkeys(("measured", "before", "after"), figures)
    names = ("first_token_p50_s", "first_token_p90_s", "queued_p90_s", "output_tokens_per_s")
    course = {name: [1.0, None, 2.0] for name in names}
    speed = dict.fromkeys(("device", "model", "origin", "words"), HOSTILE[0])
    rates = dict.fromkeys(("before", "after", "tokens_per_s", "prompt_tokens_per_s"), 1)
    return {
        **{"from": 1790000000.0, "until": 1790003600.0, "requests": 1, "source": HOSTILE[0], "total": three},
        **{"left_out": [{"code": HOSTILE[0], "requests": 1, "words": HOSTILE[1]}], "notes": list(HOSTILE)},
        **{"changes": list(HOSTILE), "models": [{"model": name, **three} for name in HOSTILE]},
        **{"series": {"from": 1790000000.0, "step_s": 60, **dict.fromkeys(three, course)}},
        "speeds": [{**speed, **rates}],
    }


def hostile_snapshot() -> dict[str, Any]:
    agents, deployments, models = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for name in HOSTILE:
        gpu = {"name": name, "memory_total_bytes": 1, "memory_used_bytes": 1, "temperature_c": 99}
        agents[name] = {"status": name, "reason": name, "labels": {name: name}, "gpus": {"0": gpu}}
        deployments[f"{name}/e/{name}"] = {
            **{"agent": name, "model": name, "version": name, "status": "failed", "reason": name},
            **{"slots": 1, "in_flight": 1, "managed": True},
        }
        models[name] = {"waiting": 5, "oldest_s": 50, "slots": 0, "in_flight": 0, "deployments": 1}
    changes = [
        {
            "at": 1.0,
            "of": "agent",
            "name": HOSTILE[0],
            "from": HOSTILE[1],
            "to": HOSTILE[0],
            "why": HOSTILE[1],
        }
    ]
    return {
        **{
            "at": 1790000000.0,
            "process": HOSTILE[0],
            "processes": {HOSTILE[1]: {"up": False, "why": HOSTILE[0]}},
        },
        **{"agents": agents, "deployments": deployments, "models": models, "troubles": {HOSTILE[0]: True}},
        **{"totals": {"running": 1, "waiting": 1, "begun": 1, "ended": 1, "failed": 1}},
        **{"requests": [], "changes": changes},
    }


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
            stage.delta(at=1790000001.0, changes=hostile_snapshot()["changes"])
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
    assert found["words"] == ["12.3 ms", "2.0 h", "80.0 GiB", "5.3 %", "1.23 M", "–"]


@pytest.mark.browser
async def test_a_thousand_deployments_that_all_change_each_second_cost_little(browser: Browser) -> None:
    """CPU of the process that draws: less than a tenth of a core at a delta each second."""
    snapshot = fleet(250, 4)
    async with StagedGateway(snapshot) as stage:
        page = await browser.open(stage.url, KEY)
        await page.wait_for_selector("tl-fleet tbody tr")
        frames = "async () => (await import('./js/live.js')).live.frames"
        before_s, deltas = await browser.renderers_cpu_s(), 20
        for turn in range(deltas):
            figures = {"utilisation": (turn % 10) / 10, "in_flight": turn % 8}
            stage.delta(at=1790000001.0 + turn, deployments=dict.fromkeys(snapshot["deployments"], figures))
            await page.wait_for_function(f"async () => (await ({frames})()) >= {turn + 2}")
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
        await page.wait_for_function(
            "async () => (await import('./js/live.js')).live.frames >= 401",
        )
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


# --- A newcomer's questions, each answered in under three clicks (docs/dashboard.md) ---


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
