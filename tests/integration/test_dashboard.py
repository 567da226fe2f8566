"""The dashboard in a real browser, at a real gateway: signing in, roles, draining, switching a canary."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from shared import __version__
from tests.integration.conftest import MODEL
from tests.support.browser import PHONE, WIDE, Browser, chromium, missing_browser
from tests.support.processes import Gateway, House, fetch

ON_DEMAND = "on-demand"

pytestmark = pytest.mark.skipif(missing_browser() is not None, reason=missing_browser() or "")


def keys(gateway: Gateway) -> dict[AdminRole | None, str]:
    """One for each role, and one without."""
    with Store.open(gateway.state) as store:
        made: dict[AdminRole | None, str] = {
            role: store.keys.create(f"its-{role}", "ops", time.time(), role=role) for role in AdminRole
        }
        return {None: store.keys.create("client", "ops", time.time()), **made}


def start_on_demand(house: House, gateway: Gateway) -> None:
    """An agent that has its engine loaded and unloaded on command."""
    engine = f"{sys.executable} -m tests.support.scripted_engine --model {ON_DEMAND} --port {{port}}"
    table = f'[[engine]]\nname = "on"\ncommand = "{engine}"\nmodels = ["{ON_DEMAND}"]\nmemory = "1 GiB"\n'
    file = house.directory / "on-demand.toml"
    file.write_text(table)
    house.agent(gateway, None, "--config", str(file), name="gpu-2")


async def sign_in_and_out(browser: Browser, gateway: Gateway, known: dict[AdminRole | None, str]) -> None:
    page = await browser.blank()
    await page.goto(f"{gateway.url}/ui/")
    for wrong, said in (("sk-tl-nobody", "API key"), (known[None], "takes the role 'viewer'")):
        await page.fill("input[name=key]", wrong)
        await page.click("button[type=submit]")
        await page.wait_for_selector(f".problem:has-text({said!r})")
    await page.fill("input[name=key]", known[AdminRole.VIEWER])
    await page.click("button[type=submit]")
    await page.wait_for_selector("tl-fleet table a:has-text('gpu-1')")
    assert await page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 1]
    assert known[AdminRole.VIEWER] not in page.url
    await page.reload()
    await page.wait_for_selector("tl-fleet table a:has-text('gpu-1')")  # the tab is still signed in
    await page.click("button:has-text('Sign out')")
    await page.wait_for_selector("input[name=key]")
    assert await page.evaluate("sessionStorage.length") == 0


async def go_to(page: Any, route: str) -> None:
    """As a link there does: to load the page anew takes as long as most of what is done on it."""
    await page.evaluate("route => { location.hash = '#/' + route }", route)


async def a_viewer_gets_no_actions(page: Any) -> None:
    await page.wait_for_selector("tl-host td:has-text('scripted')")
    titles = await page.locator("nav.pages a").all_inner_texts()
    assert not {"Keys", "Usage", "Settings"} & set(titles)
    assert (
        await page.locator("tl-host button:has-text('Drain'), tl-host button:has-text('Revoke')").count() == 0
    )
    await go_to(page, "keys")
    await page.wait_for_selector("main .notice:has-text('takes the role admin')")
    # An act that is tried all the same is refused by the gateway, in its words.
    refusal = await page.evaluate(
        """async () => {
            const { post } = await import("./js/api.js");
            try {
                await post("/admin/agents/gpu-1/drain");
                return "done";
            } catch (error) {
                return error.words;
            }
        }"""
    )
    assert "This takes the role 'operator', and this key has the role 'viewer'" in refusal


async def an_operator_drains(page: Any, gateway: Gateway, key: str) -> None:
    await go_to(page, "host/gpu-1")
    for button, draining in (("Drain", True), ("Give it work again", False)):
        await page.click(f"tl-host button:has-text({button!r})")
        await page.wait_for_selector(f"tl-host button:has-text({'Give' if draining else 'Drain'!r})")
        agent, _ = fetch(f"{gateway.url}/admin/agents", key=key)["agents"]
        assert (agent["name"], agent["draining"]) == ("gpu-1", draining)


async def an_operator_switches_a_canary(page: Any, gateway: Gateway, key: str) -> None:
    await page.click("button:has-text('New alias')")
    await page.fill("dialog input[name=name]", "stable")
    await page.fill("dialog input[name=targets]", f"{MODEL}@v1=95, {MODEL}@v2=5")
    await page.click("dialog button[type=submit]")
    slider = page.get_by_label(f"Share of {MODEL}@v2 in stable", exact=True)
    await slider.focus()
    for _ in range(15):
        await page.keyboard.press("ArrowRight")
    await page.click(".alias button:has-text('Switch')")
    await page.wait_for_selector(".toast:has-text('scripted@v2 20 %')")
    assert shares(gateway, key) == [0.8, 0.2]
    await page.click(".alias button:has-text('Back to what it was')")
    await page.wait_for_selector(".toast:has-text('scripted@v2 5.0 %')")
    assert shares(gateway, key) == [0.95, 0.05]


def shares(gateway: Gateway, key: str) -> list[float]:
    (alias,) = fetch(f"{gateway.url}/admin/aliases", key=key)["aliases"]
    return [round(each["share"], 6) for each in alias["targets"]]


async def an_operator_loads_and_evicts_a_model(page: Any) -> None:
    await go_to(page, "models")
    row = f"tl-models tr:has-text({ON_DEMAND!r})"
    steps = (("Load", "is to be loaded", "ready"), ("Evict", "goes from 1 host", "not loaded"))
    for button, done, state in steps:
        await page.click(f"{row} button:has-text({button!r})")
        await page.click("dialog button[type=submit]")
        await page.wait_for_selector(f".toast:has-text('{ON_DEMAND} {done}')")
        await page.wait_for_selector(f"{row} .badge:has-text({state!r})")


async def an_operator_repeats_a_job_of_another_tenant(page: Any, gateway: Gateway) -> None:
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "A secret prompt."}]}
    job = {"path": "/v1/chat/completions", "body": ask | {"script": {"status": 400}}}
    made = fetch(f"{gateway.base_url}/jobs", body=job, key=gateway.key("its-owner"))
    await go_to(page, "jobs?tenant=tests")
    row = f"tl-jobs tr:has-text({made['id']!r})"
    await page.wait_for_selector(f"{row} .badge:has-text('failed')")
    assert "A secret prompt." not in await page.inner_text("tl-jobs")
    await page.click(f"{row} button:has-text('Try again')")
    await page.wait_for_selector(f".toast:has-text('{made['id']} waits again.')")
    await page.get_by_label("Tenant", exact=True).fill("somebody-else")
    await page.wait_for_selector("tl-jobs .empty:has-text('No job matches')")


async def an_admin_makes_a_key_whose_secret_is_shown_once(page: Any, gateway: Gateway) -> None:
    await go_to(page, "keys")
    await page.click("button:has-text('New key')")
    await page.fill("dialog input[name=name]", "its-client")
    await page.click("dialog button[type=submit]")
    secret = await page.inner_text("dialog .secret-text")
    assert fetch(f"{gateway.base_url}/models", key=secret)["data"]
    await page.click("dialog button:has-text('I have stored it')")
    await page.wait_for_selector("tl-keys td:has-text('its-client')")
    await page.wait_for_selector("dialog", state="detached")  # it goes in a turn after the one that closes it
    assert secret not in await page.content()
    await page.click("button:has-text('New key')")
    await page.fill("dialog input[name=name]", "its-client")
    await page.click("dialog button[type=submit]")
    await page.wait_for_selector("dialog .problem:not(:empty)")  # the name is taken, says the gateway
    await page.click("dialog button:has-text('Cancel')")


async def a_decision_record_is_told_in_words(page: Any, gateway: Gateway, key: str) -> None:
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "A secret prompt."}], "max_tokens": 3}
    fetch(f"{gateway.base_url}/chat/completions", body=ask, key=key)
    await go_to(page, f"requests?model={MODEL}")
    await page.click("tl-requests tbody tr:first-child td:first-child a")
    await page.wait_for_selector("tl-request .steps-words li")
    shown = await page.inner_text("tl-request")
    assert "gpu-1" in shown
    assert "Candidates" in shown
    assert "A secret prompt." not in shown


async def a_viewer_asks_what_if(page: Any) -> None:
    """From any page two clicks: the page, and what is asked most."""
    await page.click("nav.pages a:has-text('What if')")
    await page.click("tl-whatif button:has-text('2 more like those')")
    await page.wait_for_selector("tl-whatif .notice:has-text('With 2 more deployments of scripted')")
    assert await page.locator("tl-whatif .courses > canvas").count() == 1
    await page.focus("tl-whatif .courses > canvas")
    await page.keyboard.press("End")
    assert "with the changes" in await page.inner_text("tl-whatif .courses .tip")
    await page.fill("tl-whatif input[name=remove]", "1")  # it would be the last one
    await page.evaluate("document.querySelector('tl-whatif form').noValidate = true")
    await page.click("tl-whatif button[type=submit]")
    await page.wait_for_selector("tl-whatif .notice.bad:has-text('no deployment of scripted would be left')")


async def every_page_opens(page: Any) -> None:
    for name in ("flow", "models", "requests", "jobs", "usage", "keys", "alerts", "settings", "host/gpu-1"):
        await go_to(page, name)
        await page.wait_for_selector(f"tl-{name.partition('/')[0]} h1")
    await page.wait_for_selector(f"tl-host dl.facts:has-text('trunkline {__version__}')")


async def a_page_goes_on_when_the_gateway_was_restarted(page: Any, house: House, gateway: Gateway) -> None:
    await go_to(page, "fleet")
    await page.wait_for_selector("tl-fleet tr:has-text('gpu-1') .badge:has-text('ready')")
    house.children.stop(gateway.child)
    await page.wait_for_selector(".connection:has-text('Not connected')")
    await page.wait_for_selector("main .notice.warn:has-text('What you see is from before.')")
    house.gateway(port=gateway.port)
    await page.wait_for_selector(".toast:has-text('The gateway was restarted')")
    await page.wait_for_selector("tl-fleet tr:has-text('gpu-1') .badge:has-text('ready')")


async def test_a_browser_shows_and_does_what_the_keys_role_allows(tmp_path: Path) -> None:
    """A page for each role, and none that nobody looks at: it would still follow its gateway and draw."""
    with House(tmp_path / "house") as house:
        gateway, engine = house.gateway(), house.engine("--model", MODEL)
        known = keys(gateway)
        house.agent(gateway, engine.url, name="gpu-1")
        start_on_demand(house, gateway)
        for model in (MODEL, ON_DEMAND):
            house.wait_for_model(gateway, known[None], model)
        operator, admin = known[AdminRole.OPERATOR], known[AdminRole.ADMIN]
        async with chromium() as browser:
            await sign_in_and_out(browser, gateway, known)
            await browser.close_pages()
            page = await browser.open(gateway.url, operator, "models", size=PHONE)
            await an_operator_switches_a_canary(page, gateway, operator)
            await page.set_viewport_size(WIDE)
            await an_operator_drains(page, gateway, operator)
            await an_operator_loads_and_evicts_a_model(page)
            await an_operator_repeats_a_job_of_another_tenant(page, gateway)
            await browser.close_pages()
            page = await browser.open(gateway.url, admin)
            await every_page_opens(page)
            await an_admin_makes_a_key_whose_secret_is_shown_once(page, gateway)
            await a_decision_record_is_told_in_words(page, gateway, admin)
            await browser.close_pages()
            page = await browser.open(gateway.url, known[AdminRole.VIEWER], "host/gpu-1")
            await a_viewer_gets_no_actions(page)
            await a_viewer_asks_what_if(page)
            await a_page_goes_on_when_the_gateway_was_restarted(page, house, gateway)
            assert browser.problems == []
