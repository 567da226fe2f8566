"""``python -m tests.screenshots``: makes the pictures in ``docs/dashboard`` from a real gateway under load.

A gateway, six agents and their engines run as processes of their own; clients ask over HTTP. Only the engines
are scripted: they need no GPU, so the pictures tell of none. Needs Chromium and the packages of the extra
``test``.
"""

import argparse
import asyncio
import contextlib
import io
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from tests.support.browser import PHONE, Browser, chromium, missing_browser
from tests.support.processes import Gateway, House

PICTURES = Path(__file__).parents[1] / "docs" / "dashboard"
HOSTS = {
    "berlin-1": "llama-3.1-8b",
    "berlin-2": "llama-3.1-8b",
    "berlin-3": "llama-3.3-8b",
    "oslo-1": "qwen-2.5-7b",
    "oslo-2": "qwen-2.5-7b",
    "oslo-3": "whisper-large",
}
ALIAS = "chat"
CLIENTS = 26
WARM_S = 25.0
COLOURS = 128
"""Of a picture: more are not told apart at this size, and take more bytes."""


async def ask_for_ever(gateway: Gateway, keys: Sequence[str], seed: int) -> None:
    """One client: a streamed chat after another, of different lengths."""
    dice = random.Random(seed)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
        while True:
            body = {
                "model": dice.choice([ALIAS, ALIAS, "qwen-2.5-7b"]),
                "messages": [{"role": "user", "content": f"Tell me of number {dice.random()}."}],
                "max_tokens": dice.randint(10, 120),
                "stream": True,
            }
            tier = dice.choice(["realtime", "standard", "standard", "batch"])
            headers = {"authorization": f"Bearer {dice.choice(keys)}", "x-trunkline-tier": tier}
            with contextlib.suppress(httpx.HTTPError):
                await client.post("/v1/chat/completions", json=body, headers=headers)


def save(name: str, taken: bytes) -> None:
    """With few colours, so that all pictures together take some hundred kilobytes."""
    image = Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    path = PICTURES / f"{name}.png"
    image.save(path, optimize=True)
    sys.stdout.write(f"{path.relative_to(Path.cwd())}: {path.stat().st_size // 1024} KiB\n")


async def take_pictures(browser: Browser, gateway: Gateway, key: str) -> None:
    """Of the pages that tell most."""
    light = await browser.open(gateway.url, key)
    dark = await browser.open(gateway.url, key, dark=True)
    phone = await browser.open(gateway.url, key, size=PHONE)
    await asyncio.sleep(WARM_S)
    save("fleet", await light.screenshot())
    save("fleet-phone", await phone.screenshot())
    save("fleet-dark", await dark.screenshot())
    await show(dark, "flow")
    await asyncio.sleep(5)
    save("flow", await dark.screenshot())
    await show(light, "models")
    await light.wait_for_selector(".alias")
    await asyncio.sleep(12)  # a second reading of the histograms
    save("models", await light.screenshot())
    await show(light, "requests?slow_than=1")
    await light.click("tl-requests tbody tr:nth-child(2) td:first-child a")
    await light.wait_for_selector("tl-request .steps-words li")
    save("request", await light.screenshot())


async def show(page: Any, route: str) -> None:
    await page.evaluate("route => { location.hash = `/${route}` }", route)


def make_keys(gateway: Gateway) -> tuple[str, list[str]]:
    """An admin's, and those of clients of two tenants. The alias is a canary."""
    from gateway.domain.aliases import read_targets

    now_s = time.time()
    with Store.open(gateway.state) as store:
        store.aliases.set_targets(ALIAS, read_targets(["llama-3.1-8b=90", "llama-3.3-8b=10"]), now_s)
        clients = [
            store.keys.create(name, tenant, now_s) for name, tenant in (("app", "acme"), ("lab", "uni"))
        ]
        return store.keys.create("ops", "default", now_s, role=AdminRole.ADMIN), clients


async def run() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, House(Path(directory)) as house:
        gateway = house.gateway()
        admin, keys = make_keys(gateway)
        for name, model in HOSTS.items():
            engine = house.engine("--model", model, "--tokens-per-s", "25", name=f"{name}-engine")
            token = gateway.token(labels={"region": name.partition("-")[0]})
            house.agent(gateway, engine.url, "--slots", "4", name=name, token=token)
        for model in set(HOSTS.values()):
            house.wait_for_model(gateway, admin, model)
        asking = [asyncio.create_task(ask_for_ever(gateway, keys, seed)) for seed in range(CLIENTS)]
        try:
            async with chromium() as browser:
                await take_pictures(browser, gateway, admin)
                if browser.problems:
                    raise SystemExit("\n".join(browser.problems))
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


def main() -> None:
    argparse.ArgumentParser(prog="tests.screenshots", description=__doc__).parse_args()
    reason = missing_browser()
    if reason is not None:
        raise SystemExit(reason)
    asyncio.run(run())


if __name__ == "__main__":
    main()
