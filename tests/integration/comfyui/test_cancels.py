"""Prompts that are cancelled at ComfyUI, which hits no other prompt, and servers that are lost."""

import asyncio
import contextlib
import logging
import os
import random
import signal
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.integration.comfyui.site import REAL, ComfyUISite, painting, size_and_color, stand_in_only, start
from tests.support.processes import House, fetch, until

PROMPTS = int(os.environ.get("TRUNKLINE_TEST_COMFYUI_PROMPTS", "24"))
"""How many the test with random cancels sends."""

CLIENTS = 10
"""How many ask at a time."""


async def test_a_job_that_is_cancelled_ends_no_other(site: ComfyUISite) -> None:
    first, second, third = [await site.submitted("painting", color=color) for color in (101, 102, 103)]
    for job_id in (first, second):  # the first runs, or is about to
        async with site.ask(f"/v1/jobs/{job_id}/cancel", {}) as response:
            assert response.status in (200, 202)
    assert [(await site.ended(job_id))["status"] for job_id in (first, second, third)] == [
        "cancelled",
        "cancelled",
        "succeeded",
    ]
    async with site.ask(f"/v1/jobs/{third}/result") as response:
        assert size_and_color(await response.read())[1] == (0, 0, 103)


async def test_prompts_with_random_cancels_hit_no_other(site: ComfyUISite) -> None:
    """Each prompt has a colour of its own, which its image must have."""
    loop, chance, clients = asyncio.get_running_loop(), random.Random(5), asyncio.Semaphore(CLIENTS)
    began_s = loop.time()
    assert (await site.run("painting", color=999))[0] == 200
    took_s = loop.time() - began_s
    outcomes = {"done": 0, "cancelled": 0}

    async def one(number: int) -> None:
        color, gives_up = 1000 + number, chance.random() < 0.5
        longest = CLIENTS if number % 4 else 0.5
        patience_s = chance.random() * took_s * longest if gives_up else 300.0
        async with clients:
            try:
                async with asyncio.timeout(patience_s):
                    status, body = await site.run("painting", color=color)
            except TimeoutError:
                outcomes["cancelled"] += 1
                return
        assert status == 200, body
        assert size_and_color(body)[1] == (0, color >> 8, color & 255)
        outcomes["done"] += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(PROMPTS):
            tasks.create_task(one(number))
    logging.getLogger(__name__).info("%d prompts: %s", PROMPTS, outcomes)
    assert sum(outcomes.values()) == PROMPTS
    assert outcomes["done"] >= PROMPTS // 3
    assert outcomes["cancelled"]
    if not REAL:
        assert site.stats()["deepest"] == 1


async def test_cancels_hit_no_prompt_that_somebody_else_has_at_the_server(site: ComfyUISite) -> None:
    """Somebody else sends prompts to the server itself, between those that are cancelled here."""
    chance, theirs = random.Random(6), list[str]()
    begun = asyncio.get_running_loop().time()
    assert (await site.run("painting", color=998))[0] == 200
    took_s = asyncio.get_running_loop().time() - begun

    async def give_up() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(chance.random() * 2 * took_s):
                await site.run("painting", color=chance.randrange(1 << 24))

    async with aiohttp.ClientSession() as session:
        for number in range(PROMPTS // 4):
            prompt = painting()["workflow"]
            prompt["1"]["inputs"]["color"] = 5000 + number
            async with session.post(f"{site.server_url}/prompt", json={"prompt": prompt}) as response:
                theirs.append((await response.json())["prompt_id"])
            await asyncio.gather(give_up(), give_up())
        for prompt_id in theirs:
            record = None
            while record is None:
                async with session.get(f"{site.server_url}/history/{prompt_id}") as response:
                    record = (await response.json()).get(prompt_id)
                await asyncio.sleep(0.02)
            assert record["status"]["status_str"] == "success", prompt_id


@stand_in_only
async def test_a_client_that_leaves_ends_its_prompt_alone(site: ComfyUISite) -> None:
    await site.leaves_a_prompt()


@stand_in_only
@pytest.mark.parametrize("how", [("--cancels", "id"), ("--cancels", "all", "--no-ids")])
async def test_older_servers_are_cancelled_without_hitting_others(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    with House(tmp_path) as house:
        arguments = ("tests.support.comfyui_server", "--step-s", "0.01", *how)
        url = house.listening(house.children.start("comfyui", *arguments))
        gateway, key = start(house, tmp_path, [url])
        site = ComfyUISite(house, gateway, key, url)
        for _ in range(3):
            await site.leaves_a_prompt()


def runs(url: str) -> bool:
    return fetch(f"{url}/_stats")["running"] is not None


@stand_in_only
async def test_two_servers_share_the_work_and_one_that_dies_is_left(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        children = [house.children.start(f"comfyui{n}", "tests.support.comfyui_server") for n in (1, 2)]
        urls = [house.listening(child) for child in children]
        gateway, key = start(house, tmp_path, urls)
        site = ComfyUISite(house, gateway, key, urls[0])
        log = tmp_path / "agent.log"  # two lines for each server: its prompts, and its own paths
        until("both are offered", lambda: log.read_text().count("engine serves") == 4)
        answers = await asyncio.gather(*(site.run("slow", steps=10) for _ in range(4)))
        assert [status for status, _ in answers] == 4 * [200]
        done = [fetch(f"{url}/_stats")["done"] for url in urls]
        assert sum(done) == 4
        assert min(done) >= 1, "both had work"
        asking = [asyncio.create_task(site.run("slow", steps=100)) for _ in range(2)]
        for url in urls:
            await asyncio.to_thread(until, "it runs", partial(runs, url))
        children[0].signal(signal.SIGKILL)
        assert [(await each)[0] for each in asking] == [200, 200]  # the lost one was begun anew elsewhere
