"""ComfyUI's own clients: its socket and its other paths through the gateway; and a socket that fails."""

import asyncio
import json
import random

import aiohttp

from tests.integration.comfyui.site import ComfyUISite, node, painting, size_and_color, stand_in_only
from tests.support.processes import until


async def test_a_client_of_comfyui_follows_its_prompt_on_its_socket(site: ComfyUISite) -> None:
    """As ComfyUI's own example of a client does it."""
    base, headers = f"{site.gateway.url}/engines/studio", {"authorization": f"Bearer {site.key}"}
    prompt = painting()["workflow"]
    prompt["1"]["inputs"]["color"] = random.Random().randrange(1 << 24)
    kinds = list[str]()
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(f"{base}/ws?clientId=me") as socket,
    ):
        first = await socket.receive_json(timeout=10)
        assert (first["type"], first["data"]["sid"]) == ("status", "me")
        other = asyncio.create_task(site.run("painting", color=77))  # which the socket is not told of
        body = {"prompt": prompt, "client_id": "me"}
        async with session.post(f"{base}/prompt", json=body) as response:
            assert response.status == 200, await response.text()
            prompt_id = (await response.json())["prompt_id"]
        while True:
            message = await socket.receive(timeout=30)
            if message.type is aiohttp.WSMsgType.BINARY:
                continue
            said = json.loads(message.data)
            kinds.append(said["type"])
            assert said["data"].get("prompt_id", prompt_id) == prompt_id
            if said["type"] == "executing" and said["data"]["node"] is None:
                break
        async with session.get(f"{base}/history/{prompt_id}") as response:
            (image,) = (await response.json())[prompt_id]["outputs"]["99"]["images"]
        async with session.get(f"{base}/view", params=image) as response:
            size, _ = size_and_color(await response.read())
        assert size[0] > 0
        assert (await other)[0] == 200
    assert {"execution_start", "executing", "executed", "progress_state"} <= set(kinds)


async def test_other_paths_answer_while_a_prompt_runs(site: ComfyUISite) -> None:
    asking = asyncio.create_task(site.run("painting", color=99))
    async with site.ask("/engines/studio/queue") as response:
        assert response.status == 200
    async with site.ask("/engines/studio/object_info/SaveImage") as response:
        assert "SaveImage" in await response.json()
    async with site.ask("/engines/studio/prompt", {"prompt": {"1": node("NoSuchNode")}}) as response:
        assert (response.status, list(await response.json())) == (400, ["error", "node_errors"])
    async with site.ask("/v1/chat/completions", {"model": "studio", "messages": []}) as response:
        assert response.status == 404
    assert (await asking)[0] == 200


@stand_in_only
async def test_a_flood_of_progress_delays_nobody_for_long(site: ComfyUISite) -> None:
    flooding = asyncio.create_task(site.run("floods"))
    others = [site.run("painting", color=7) for _ in range(3)]
    assert [status for status, _ in await asyncio.gather(flooding, *others)] == 4 * [200]


@stand_in_only
async def test_a_silent_or_lost_socket_costs_no_prompt(site: ComfyUISite) -> None:
    before = site.stats()["sockets"]
    site.script(silent=True)
    try:
        assert (await site.run("painting", color=3))[0] == 200
    finally:
        site.script(silent=False)
    await asyncio.to_thread(until, "the socket was made anew", lambda: site.stats()["sockets"] > before)
    asking = asyncio.create_task(site.run("slow"))
    await asyncio.to_thread(until, "it runs", lambda: site.stats()["running"])
    site.script(end_sockets=True)
    assert (await asking)[0] == 200
