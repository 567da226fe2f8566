"""``python -m tests.screenshots``: makes the pictures in ``docs/dashboard`` from a real gateway under load.

A gateway, seven agents and their engines run as processes of their own; clients ask over HTTP, some of them
for what fails; there are jobs, a batch, keys, tenants with limits, prices and a canary. Only the engines are
scripted: they need no GPU, so the pictures tell of none. Needs Chromium and the packages of the extra
``test``.

``--look DIRECTORY`` takes every page in light, dark and at a phone's width: of an empty gateway, under load,
and with things broken.
"""

import argparse
import asyncio
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
from PIL import Image

from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from gateway.tools.quickstart.processes import Child
from tests.support.browser import PHONE, WIDE, Browser, chromium, missing_browser
from tests.support.processes import Engine, Gateway, House

PICTURES = Path(__file__).parents[1] / "docs" / "dashboard"
HOSTS = {
    "berlin-1": "llama-3.1-8b",
    "berlin-2": "llama-3.1-8b",
    "berlin-3": "llama-3.3-8b",
    "oslo-1": "qwen-2.5-7b",
    "oslo-2": "qwen-2.5-7b",
    "oslo-3": "whisper-large",
}
ON_DEMAND = ("bergen-1", ("mistral-small", "phi-4"))
"""An agent that starts its engines itself and has room for one of these models."""
ALIAS = "chat"
CLIENTS = 26
WARM_S = 25.0
COLOURS = 128
"""Of a picture: more are not told apart at this size, and take more bytes."""
ROUTES = (
    "fleet",
    "host/berlin-1",
    "flow",
    "models",
    "requests",
    "jobs",
    "usage",
    "keys",
    "whatif",
    "alerts",
    "settings",
)


@dataclass(frozen=True, slots=True)
class Scene:
    """What runs."""

    house: House
    gateway: Gateway
    admin: str
    """A key of that role."""
    clients: Sequence[str]
    """Keys of several tenants."""
    engines: dict[str, Engine]
    agents: dict[str, Child]

    def api(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.gateway.url, timeout=60, headers={"authorization": f"Bearer {self.admin}"}
        )


@contextmanager
def scene(directory: Path, *, hosts: bool = True) -> Iterator[Scene]:
    """A gateway, with all agents or with none."""
    with House(directory) as house:
        gateway = house.gateway(environment={"TRUNKLINE_GATEWAY_RECORDS__SLOW_S": "2"})
        now_s = time.time()
        with Store.open(gateway.state) as store:
            admin = store.keys.create("ops", "default", now_s, role=AdminRole.ADMIN)
            owners = (("app", "acme"), ("search", "acme"), ("lab", "uni"), ("intern", "uni"))
            clients = [store.keys.create(name, tenant, now_s) for name, tenant in owners]
        engines, agents = dict[str, Engine](), dict[str, Child]()
        for name, model in HOSTS.items() if hosts else ():
            engines[name] = house.engine("--model", model, name=f"{name}-engine")
            engines[name].direct(default={"tokens_per_s": 25, "whole_tokens_per_s": 25})
            token = gateway.token(labels={"region": name.partition("-")[0]})
            agents[name] = house.agent(gateway, engines[name].url, "--slots", "4", name=name, token=token)
        if hosts:
            _on_demand_agent(house, gateway)
            for model in {*HOSTS.values(), *ON_DEMAND[1]}:
                house.wait_for_model(gateway, admin, model)
        yield Scene(house, gateway, admin, clients, engines, agents)


def _on_demand_agent(house: House, gateway: Gateway) -> None:
    name, models = ON_DEMAND
    engine = f"{sys.executable} -m tests.support.scripted_engine --port {{port}} --load-s 3 --tokens-per-s 25"
    tables = [
        f'[[engine]]\nname = "{model}"\ncommand = "{engine} --model {model}"\nmodels = ["{model}"]\n'
        'memory = "20 GiB"\n'
        for model in models
    ]
    file = house.directory / "on-demand.toml"
    file.write_text("".join(['[models]\nmemory = "24 GiB"\n', *tables]))
    token = gateway.token(labels={"region": name.partition("-")[0]})
    house.agent(gateway, None, "--config", str(file), name=name, token=token)


# --- What happens there ---


async def set_up(there: Scene) -> None:
    """A canary, limits, prices, a job of each kind and a batch."""
    async with there.api() as api:
        await api.put(f"/admin/aliases/{ALIAS}", json={"targets": ["llama-3.1-8b=90", "llama-3.3-8b=10"]})
        await api.patch("/admin/tenants/uni", json={"rpm": 6000, "money_per_day": 50, "weight": 0.5})
        await api.patch("/admin/tenants/acme", json={"tpm": 2_000_000, "concurrency": 200})
        for model, price in (("*", 0.2), ("qwen-2.5-7b", 0.4)):
            await api.put(f"/admin/prices/{model}", json={"input": price, "output": 3 * price})
        await api.post("/admin/tokens", json={"uses": 8, "life_s": 86400, "models": ["llama-*"]})
    for number, key in enumerate(there.clients):
        async with _client(there, key) as client:
            for tokens in (400, 900, 40):
                body = _chat("qwen-2.5-7b", f"Job {number}, {tokens}", tokens)
                await client.post("/v1/jobs", json={"path": "/v1/chat/completions", "body": body})
            wrong = {**_chat("oslo", "x", 5), "model": "whisper-large", "script": {"fault": "die"}}
            await client.post("/v1/jobs", json={"path": "/v1/chat/completions", "body": wrong})
    async with _client(there, there.clients[0]) as client:
        url = "/v1/chat/completions"
        lines = [
            {
                "custom_id": str(n),
                "method": "POST",
                "url": url,
                "body": _chat("llama-3.3-8b", f"Line {n}", 60),
            }
            for n in range(120)
        ]
        file = b"\n".join(map(orjson.dumps, lines))
        sent = await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", file)})
        asked = {"input_file_id": sent.json()["id"], "endpoint": url, "completion_window": "24h"}
        (await client.post("/v1/batches", json=asked)).raise_for_status()


def _client(there: Scene, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=there.gateway.url, timeout=60, headers=headers)


def _chat(model: str, text: str, tokens: int) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}


async def ask_for_ever(there: Scene, seed: int) -> None:
    """One client: a streamed chat after another, of different lengths; now and then one that fails, and one
    whose client leaves."""
    dice = random.Random(seed)
    async with httpx.AsyncClient(base_url=there.gateway.url, timeout=60) as client:
        while True:
            model = dice.choice([ALIAS, ALIAS, ALIAS, "qwen-2.5-7b"])
            body = _chat(model, f"Tell me of number {dice.random()}.", dice.randint(10, 120)) | {
                "stream": True
            }
            if dice.random() < 0.03:
                body |= {"script": {"fault": "die"}}
            tier = dice.choice(["realtime", "standard", "standard", "batch"])
            key = dice.choices(there.clients, (6, 3, 2, 1))[0]
            headers = {"authorization": f"Bearer {key}", "x-trunkline-tier": tier}
            patience_s = 1.0 if dice.random() < 0.03 else 60.0
            with contextlib.suppress(httpx.HTTPError, TimeoutError):
                async with asyncio.timeout(patience_s):
                    await client.post("/v1/chat/completions", json=body, headers=headers)


@contextlib.asynccontextmanager
async def under_load(there: Scene) -> Any:
    asking = [asyncio.create_task(ask_for_ever(there, seed)) for seed in range(CLIENTS)]
    try:
        yield
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


def break_something(there: Scene) -> None:
    """One agent is killed, and one engine answers nothing but errors."""
    os.kill(there.agents["berlin-1"].pid, signal.SIGKILL)
    there.engines["oslo-1"].direct(trouble="500")


# --- Pictures ---


def save(path: Path, taken: bytes) -> None:
    """With few colours, so that all pictures together take some hundred kilobytes."""
    image = Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, optimize=True)
    sys.stdout.write(f"{path}: {path.stat().st_size // 1024} KiB\n")


async def show(page: Any, route: str) -> None:
    await page.evaluate("route => { location.hash = `/${route}` }", route)
    await page.wait_for_selector(f"tl-{route.partition('/')[0].partition('?')[0]} h1")


async def ask_what_if(page: Any) -> None:
    """What two more would bring, where something is served."""
    await page.wait_for_selector("tl-whatif .presets button, tl-whatif .empty")
    more = page.get_by_role("button", name="2 more l4")
    if await more.count():
        await more.click()
        await page.wait_for_selector("tl-whatif .answer:visible", timeout=120_000)


async def take_pictures(browser: Browser, there: Scene) -> None:
    """One of each page, and the fleet in dark and on a phone."""
    url, key = there.gateway.url, there.admin

    async def take(page: Any, name: str, route: str = "", settle_s: float = 1.5) -> None:
        if route:
            await show(page, route)
        await asyncio.sleep(settle_s)
        save(PICTURES / f"{name}.png", await page.screenshot())

    light, dark = await browser.open(url, key), await browser.open(url, key, dark=True)
    phone = await browser.open(url, key, size=PHONE)
    await asyncio.sleep(WARM_S)
    await take(light, "fleet")
    await take(phone, "fleet-phone")
    await take(dark, "flow", "flow", 5)
    await take(dark, "host", "host/bergen-1")
    await show(light, "models")
    await light.wait_for_selector(".alias")
    await take(light, "models", settle_s=12)  # a second reading of the histograms
    await take(light, "requests", "requests?kind=slow&state=answered")
    await light.click("tl-requests tbody tr:nth-child(1) td:first-child a")
    await light.wait_for_selector("tl-request .steps-words li")
    await take(light, "request")
    for route in ("jobs", "usage", "keys", "settings"):
        await take(light, route, route, 4)
    await show(light, "whatif")
    await ask_what_if(light)
    await take(light, "whatif")
    break_something(there)
    await asyncio.sleep(15)
    await take(light, "alerts", "alerts")
    await take(dark, "fleet-dark", "fleet")


async def look(browser: Browser, there: Scene, directory: Path) -> None:
    """Every page in every form."""
    url, key = there.gateway.url, there.admin
    forms = {"light": (WIDE, False), "dark": (WIDE, True), "phone": (PHONE, False)}
    for form, (size, dark) in forms.items():
        page = await browser.open(url, key, size=size, dark=dark)
        for route in ROUTES:
            await show(page, route)
            if route == "whatif":
                await ask_what_if(page)
            await asyncio.sleep(1.5)
            save(directory / f"{route.replace('/', '-')}-{form}.png", await page.screenshot(full_page=True))
        await page.context.close()


async def in_browser(doing: Callable[[Browser], Awaitable[None]]) -> None:
    async with chromium() as browser:
        await doing(browser)
        if browser.problems:
            raise SystemExit("\n".join(browser.problems))


async def pictures() -> None:
    """Into ``docs/dashboard``."""
    with tempfile.TemporaryDirectory() as directory, scene(Path(directory)) as there:
        await set_up(there)
        async with under_load(there):
            await in_browser(lambda browser: take_pictures(browser, there))


async def looks(to: Path) -> None:
    """Of every page, into a directory."""
    with tempfile.TemporaryDirectory() as directory, scene(Path(directory), hosts=False) as there:
        await in_browser(lambda browser: look(browser, there, to / "empty"))
    with tempfile.TemporaryDirectory() as directory, scene(Path(directory)) as there:
        await set_up(there)
        async with under_load(there):
            await asyncio.sleep(WARM_S)
            await in_browser(lambda browser: look(browser, there, to / "load"))
            break_something(there)
            await asyncio.sleep(15)
            await in_browser(lambda browser: look(browser, there, to / "broken"))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.screenshots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--look", type=Path, metavar="DIRECTORY", help="take every page in every form")
    arguments = parser.parse_args()
    reason = missing_browser()
    if reason is not None:
        raise SystemExit(reason)
    asyncio.run(pictures() if arguments.look is None else looks(arguments.look))


if __name__ == "__main__":
    main()
