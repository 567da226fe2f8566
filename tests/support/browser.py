"""A headless Chromium for tests of the dashboard: Debian's, driven by Playwright."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import pytest

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""The first draws as the others do, with half of their CPU time."""
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


_FRAMES_TAKEN = """async (number) => {
    const { live } = await import("./js/live.js");
    await new Promise((taken) => {
        const look = () => live.frames >= number && (taken(), live.removeEventListener("frame", look));
        live.addEventListener("frame", look);
        look();
    });
}"""


async def frames_taken(page: Any, number: int) -> None:
    """Return once a page has taken so many snapshots and deltas, since it was loaded. (What Playwright's
    ``wait_for_function`` is given may not be asynchronous: it takes any promise for true.)"""
    async with asyncio.timeout(60):
        await page.evaluate(_FRAMES_TAKEN, number)


def chromium_path() -> str | None:
    """Where a Chromium is; ``TRUNKLINE_TEST_CHROMIUM`` names another."""
    named = os.environ.get("TRUNKLINE_TEST_CHROMIUM")
    return named or next((path for name in _NAMES if (path := shutil.which(name))), None)


def missing_browser() -> str | None:
    """What is missing for these tests, as a reason to skip them; None: nothing."""
    if find_spec("playwright") is None:
        return "the package playwright is not installed (pip install playwright)"
    if chromium_path() is None:
        return "no Chromium is installed (as root: apt-get install chromium-headless-shell)"
    return None


IN_BROWSER = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(missing_browser() is not None, reason=missing_browser() or ""),
]
"""Of modules whose tests share one browser."""


class Browser:
    """Opens pages and notes what went wrong in any of them."""

    def __init__(self, driven: Any) -> None:
        self._driven = driven
        self.problems: list[str] = []
        """Exceptions, refusals of the Content-Security-Policy and other errors on consoles."""

    async def open(
        self,
        url: str,
        key: str,
        route: str = "fleet",
        *,
        size: dict[str, int] | None = None,
        dark: bool = False,
        zone: str | None = None,
    ) -> Any:
        """A page of the dashboard at ``url``, signed in, in a context of its own."""
        page = await self.blank(size=size, dark=dark, zone=zone)
        await page.goto(f"{url}/ui/#/{route}")
        await page.fill("input[name=key]", key)
        await page.click("button[type=submit]")
        await page.wait_for_selector("nav.pages")
        return page

    async def blank(
        self, *, size: dict[str, int] | None = None, dark: bool = False, zone: str | None = None
    ) -> Any:
        """A page of its own context, which takes at most a minute for anything, in a time zone."""
        scheme = "dark" if dark else "light"
        context = await self._driven.new_context(viewport=size or WIDE, color_scheme=scheme, timezone_id=zone)
        page = await context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("console", self._note)
        return page

    async def close_pages(self) -> None:
        """Close all that are open: one that nobody looks at still follows its gateway and draws."""
        for context in self._driven.contexts:
            await context.close()

    async def renderers_cpu_s(self) -> float:
        """The CPU time of the processes that run and draw pages, in seconds."""
        session = await self._driven.new_browser_cdp_session()
        found = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
        await session.detach()
        return float(sum(each["cpuTime"] for each in found if each["type"] == "renderer"))

    def _note(self, message: Any) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.problems.append(message.text)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """One browser. Skips the test where there is none."""
    reason = missing_browser()
    if reason is not None:
        pytest.skip(reason)
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]  # as in a container
        driven = await playwright.chromium.launch(executable_path=chromium_path(), args=arguments)
        try:
            yield Browser(driven)
        finally:
            await driven.close()
