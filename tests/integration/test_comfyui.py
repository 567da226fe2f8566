"""ComfyUI behind an agent: workflows with declared inputs, as images, jobs and OpenAI's requests.

The tests run against a stand-in, and against a real server those that any can pass, whose nodes need no
models: ``TRUNKLINE_TEST_COMFYUI=http://HOST:PORT tests/run tests/integration/test_comfyui.py``.
"""

import asyncio
import base64
import contextlib
import io
import json
import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from PIL import Image

from tests.support.comfyui_server import picture
from tests.support.processes import Gateway, House, fetch, until

REAL = os.environ.get("TRUNKLINE_TEST_COMFYUI")
stand_in_only = pytest.mark.skipif(REAL is not None, reason="what the stand-in alone does")
PROMPTS = int(os.environ.get("TRUNKLINE_TEST_COMFYUI_PROMPTS", "24"))
"""How many the test with random cancels sends."""

CLIENTS = 10
"""How many ask at a time."""

CHAIN = 12
"""Nodes one after the other, so that a prompt takes its time."""


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def painting() -> dict[str, Any]:
    prompt = {"1": node("EmptyImage", width=64, height=64, batch_size=1, color=0)}
    size = {"upscale_method": "lanczos", "width": 512, "height": 512, "crop": "disabled"}
    for place in range(CHAIN):
        prompt[str(place + 2)] = node("ImageScale", image=[str(place + 1), 0], **size)
    small = size | {"width": 48, "height": 32, "image": [str(CHAIN + 1), 0]}
    prompt["90"] = node("ImageScale", **small)
    prompt["99"] = node("SaveImage", images=["90", 0], filename_prefix="trunkline-test")
    return {
        "workflow": prompt,
        "inputs": {
            "color": {"path": "1.inputs.color", "type": "integer", "minimum": 0, "maximum": 0xFFFFFF},
            "width": {"path": "90.inputs.width", "type": "integer", "maximum": 100_000},
            "height": {"path": "90.inputs.height", "type": "integer"},
            "count": {"path": "1.inputs.batch_size", "type": "integer", "minimum": 1, "maximum": 8},
            "prompt": {"path": "99.inputs.filename_prefix", "type": "string"},
        },
        "outputs": ["99"],
        "images": {"prompt": "prompt", "size": ["width", "height"], "n": "count"},
    }


def copying() -> dict[str, Any]:
    prompt = {
        "1": node("LoadImage", image="x.png"),
        "2": node("SaveImage", images=["1", 0], filename_prefix="c"),
    }
    return {
        "workflow": prompt,
        "inputs": {"image": {"path": "1.inputs.image", "type": "image", "required": True}},
    }


def of_the_stand_in() -> dict[str, Any]:
    """Workflows of nodes that only the stand-in has."""
    begins = {"1": node("EmptyImage", width=8, height=8, batch_size=1, color=0)}
    save = node("SaveImage", images=["2", 0], filename_prefix="s")
    steps = node("Steps", image=["1", 0], steps=20, step_s=0.05, previews=True)
    slow = {
        "workflow": {**begins, "2": steps, "9": save},
        "inputs": {
            "steps": {"path": "2.inputs.steps", "type": "integer"},
            "step_s": {"path": "2.inputs.step_s", "type": "number"},
        },
    }
    large = node("SaveLarge", images=["1", 0], size_bytes=3)
    clip = {
        "workflow": {**begins, "9": large},
        "inputs": {
            "size": {"path": "9.inputs.size_bytes", "type": "integer"},
            "words": {"path": "9.inputs.words", "type": "string"},
        },
        "videos": {"prompt": "words"},
    }
    return {
        "slow": slow,
        "clip": clip,
        "fails": {**begins, "2": node("Fails", image=["1", 0]), "9": save},
        "floods": {**begins, "2": node("Floods", image=["1", 0], count=20_000), "9": save},
    }


@dataclass(frozen=True, slots=True)
class Site:
    house: House
    gateway: Gateway
    key: str
    server_url: str

    def stats(self) -> Any:
        return fetch(f"{self.server_url}/_stats")

    @asynccontextmanager
    async def ask(
        self, path: str, body: object = None, headers: Mapping[str, str] | None = None, method: str = ""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A POST with a body, else a GET."""
        fields = {"authorization": f"Bearer {self.key}", **(headers or {})}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session,
            session.request(
                method or ("GET" if body is None else "POST"),
                self.gateway.url + path,
                json=body,
                headers=fields,
            ) as response,
        ):
            yield response

    async def run(self, workflow: str, **inputs: Any) -> tuple[int, bytes]:
        async with self.ask(f"/v1/workflows/{workflow}", {"inputs": inputs}) as response:
            return response.status, await response.read()

    async def error(self, workflow: str, **inputs: Any) -> tuple[int, Any]:
        status, body = await self.run(workflow, **inputs)
        return status, json.loads(body)["error"]


def write_workflows(directory: Path) -> Path:
    directory.mkdir()
    files: dict[str, Any] = {"painting": painting(), "copying": copying()}
    files["lacking"] = {"1": node("NoSuchNode"), "2": node("SaveImage", images=["1", 0], filename_prefix="x")}
    files |= {} if REAL else of_the_stand_in()
    for name, said in files.items():
        (directory / f"{name}.json").write_text(json.dumps(said))
    (directory / "broken.json").write_text("{")
    return directory


def start(house: House, directory: Path, urls: list[str], **settings: Any) -> tuple[Gateway, str]:
    """A gateway, and an agent with the ComfyUI at each of ``urls``."""
    gateway = house.gateway()
    key = gateway.key("tests")
    workflows = write_workflows(directory / "workflows")
    lines = []
    for url in urls:
        lines += ["[[engine]]", f'url = "comfyui:{url}"', f'workflows = "{workflows}"', "refresh_s = 0.5"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    config = directory / "comfyui.toml"
    config.write_text("\n".join(lines))
    house.agent(gateway, None, "--config", str(config))
    house.wait_for_model(gateway, key, "painting")
    return gateway, key


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("comfyui")
    with House(directory) as house:
        arguments = ("tests.support.comfyui_server", "--step-s", "0.01")
        url = REAL or house.listening(house.children.start("comfyui", *arguments))
        gateway, key = start(house, directory, [url], output="1 MiB", name="studio")
        yield Site(house, gateway, key, url)


def size_and_color(data: bytes) -> tuple[tuple[int, int], Any]:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return image.size, image.getpixel((0, 0))


async def test_the_declared_inputs_make_the_image_that_is_the_answer(site: Site) -> None:
    body = {"inputs": {"color": 0x0000FF, "width": 40}}
    async with site.ask("/v1/workflows/painting", body) as response:
        assert (response.status, response.content_type) == (200, "image/png")
        size, color = size_and_color(await response.read())
    assert color == (0, 0, 255)
    if REAL:
        assert size == (40, 32)


async def test_several_images_come_as_json_in_base64(site: Site) -> None:
    status, body = await site.run("painting", color=0x00FF00, count=3)
    outputs = json.loads(body)["outputs"]
    assert (status, [each["type"] for each in outputs]) == (200, 3 * ["image/png"])
    assert {size_and_color(base64.b64decode(each["data"]))[1] for each in outputs} == {(0, 255, 0)}
    async with site.ask("/v1/workflows/painting", {"inputs": {}}, {"accept": "application/json"}) as response:
        assert len((await response.json())["outputs"]) == 1


async def test_an_image_that_is_sent_is_the_nodes_input(site: Site) -> None:
    sent = picture(20, 10, 0xFF0000)
    status, body = await site.run("copying", image=base64.b64encode(sent).decode())
    assert (status, size_and_color(body)) == (200, ((20, 10), (255, 0, 0)))
    form = aiohttp.FormData()
    form.add_field("image", picture(7, 9, 0x00FF00), filename="any.png", content_type="image/png")
    key = {"authorization": f"Bearer {site.key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(site.gateway.url + "/v1/workflows/copying", data=form, headers=key) as response,
    ):
        assert (response.status, size_and_color(await response.read())) == (200, ((7, 9), (0, 255, 0)))


async def test_a_workflow_in_the_request_is_run(site: Site) -> None:
    prompt = copying()["workflow"] | {"1": node("EmptyImage", width=9, height=5, batch_size=1, color=0xFF)}
    async with site.ask("/v1/workflows/comfyui", {"workflow": prompt}) as response:
        assert (response.status, size_and_color(await response.read())) == (200, ((9, 5), (0, 0, 255)))


@pytest.mark.parametrize(
    ("inputs", "code", "param"),
    [
        ({"depth": 3}, "unknown_input", "inputs.depth"),
        ({"color": "red"}, "invalid_type", "inputs.color"),
        ({"color": True}, "invalid_type", "inputs.color"),
        ({"color": -1}, "invalid_input", "inputs.color"),
        ({"width": 90_000}, "value_bigger_than_max", "width"),
    ],
)
async def test_an_input_that_does_not_fit_is_named(
    site: Site, inputs: dict[str, Any], code: str, param: str
) -> None:
    status, error = await site.error("painting", **inputs)
    assert (status, error["code"], error["param"]) == (400, code, param)
    assert (await site.run("painting", color=1))[0] == 200


async def test_a_missing_input_and_a_missing_node_are_told(site: Site) -> None:
    status, error = await site.error("copying")
    assert (status, error["code"], error["param"]) == (400, "missing_input", "inputs.image")
    async with site.ask("/v1/workflows/comfyui", {"workflow": {"1": node("NoSuchNode")}}) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (400, "missing_node")
        assert "NoSuchNode" in error["message"]
    for workflow, why in (("lacking", "the server has no node NoSuchNode"), ("broken", "it is no JSON")):
        assert (await site.error(workflow))[0] == 503
        assert why in (site.house.directory / "agent.log").read_text()


def test_openais_client_makes_images(site: Site) -> None:
    client = openai.OpenAI(base_url=site.gateway.base_url, api_key=site.key)
    made = client.images.generate(
        model="painting", prompt="a-lighthouse", n=2, size="auto", extra_body={"color": 0xFF0000}
    )
    assert made.data is not None
    assert len(made.data) == 2
    data = base64.b64decode(made.data[0].b64_json or "")
    assert size_and_color(data)[1] == (255, 0, 0)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.images.generate(model="painting", prompt="x", background="transparent")
    with pytest.raises(openai.NotFoundError):
        client.images.generate(model="copying", prompt="x")


async def submitted(site: Site, workflow: str, **inputs: Any) -> str:
    headers = {"prefer": "respond-async"}
    async with site.ask(f"/v1/workflows/{workflow}", {"inputs": inputs}, headers) as response:
        assert response.status == 202
        return str((await response.json())["id"])


async def ended(site: Site, job_id: str) -> Any:
    for _ in range(3000):
        async with site.ask(f"/v1/jobs/{job_id}") as response:
            job = await response.json()
        if job["status"] not in ("queued", "running"):
            return job
        await asyncio.sleep(0.1)
    raise AssertionError(f"the job did not end: {job}")


async def test_a_job_has_the_image_as_its_result(site: Site) -> None:
    job_id = await submitted(site, "painting", color=0x00FF00)
    assert (await ended(site, job_id))["status"] == "succeeded"
    async with site.ask(f"/v1/jobs/{job_id}/result") as response:
        assert response.content_type == "image/png"
        assert size_and_color(await response.read())[1] == (0, 255, 0)
    asked = {"path": "/v1/workflows/painting", "body": {"inputs": {"color": 0xFF0000}}}
    async with site.ask("/v1/jobs", asked) as response:
        job_id = (await response.json())["id"]
    assert (await ended(site, job_id))["status"] == "succeeded"
    async with site.ask(f"/v1/jobs/{job_id}/result") as response:
        assert size_and_color(await response.read())[1] == (255, 0, 0)


async def test_a_job_that_is_cancelled_ends_no_other(site: Site) -> None:
    first, second, third = [await submitted(site, "painting", color=color) for color in (101, 102, 103)]
    for job_id in (first, second):  # the first runs, or is about to
        async with site.ask(f"/v1/jobs/{job_id}/cancel", {}) as response:
            assert response.status in (200, 202)
    assert [(await ended(site, job_id))["status"] for job_id in (first, second, third)] == [
        "cancelled",
        "cancelled",
        "succeeded",
    ]
    async with site.ask(f"/v1/jobs/{third}/result") as response:
        assert size_and_color(await response.read())[1] == (0, 0, 103)


async def test_prompts_with_random_cancels_hit_no_other(site: Site) -> None:
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


async def test_cancels_hit_no_prompt_that_somebody_else_has_at_the_server(site: Site) -> None:
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
            assert record["status"]["status_str"] == "success", prompt_id


@stand_in_only
async def test_progress_and_previews_reach_the_job_and_the_stream(site: Site) -> None:
    headers = {"accept": "text/event-stream", "x-trunkline-progress": "1"}
    async with site.ask("/v1/workflows/slow", {"inputs": {}}, headers) as response:
        assert response.status == 200
        lines = (await response.text()).splitlines()
    told = [json.loads(line.removeprefix(": progress ")) for line in lines if line.startswith(": progress ")]
    fractions = [each["fraction"] for each in told]
    assert fractions == sorted(fractions)
    assert any("Steps: " in each.get("text", "") for each in told)
    assert any(each.get("preview", {}).get("type") == "image/jpeg" for each in told)
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert size_and_color(base64.b64decode(json.loads(data[0])["outputs"][0]["data"]))[0] == (8, 8)


@stand_in_only
async def test_a_client_that_leaves_ends_its_prompt_alone(site: Site) -> None:
    before = site.stats()
    asking = asyncio.create_task(site.run("slow", steps=2000))
    await asyncio.to_thread(until, "it runs", lambda: site.stats()["running"])
    prompt_id = site.stats()["running"]
    waiting = asyncio.create_task(site.run("painting", color=5))
    asking.cancel()
    status, body = await waiting
    assert (status, size_and_color(body)[1]) == (200, (0, 0, 5))
    after = site.stats()
    assert after["interrupted"][len(before["interrupted"]) :] == [prompt_id]


async def test_a_client_of_comfyui_follows_its_prompt_on_its_socket(site: Site) -> None:
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


async def test_other_paths_answer_while_a_prompt_runs(site: Site) -> None:
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
async def test_errors_of_nodes_and_outputs_that_are_too_large_are_told(site: Site) -> None:
    status, error = await site.error("clip", size=2 << 20)
    assert (status, error["code"]) == (422, "output_too_large")
    async with site.ask("/v1/workflows/fails", {"inputs": {}}) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (500, "workflow_failed")
        assert error["message"] == "Node 2 (Fails) failed: RuntimeError: this node always fails"


@stand_in_only
async def test_a_flood_of_progress_delays_nobody_for_long(site: Site) -> None:
    flooding = asyncio.create_task(site.run("floods"))
    others = [site.run("painting", color=7) for _ in range(3)]
    assert [status for status, _ in await asyncio.gather(flooding, *others)] == 4 * [200]


@stand_in_only
async def test_a_video_is_made(site: Site) -> None:
    async with site.ask("/v1/videos", {"model": "clip", "prompt": "waves"}) as response:
        video_id = (await response.json())["id"]
    assert (await ended(site, video_id))["status"] == "succeeded"
    async with site.ask(f"/v1/videos/{video_id}/content") as response:
        assert (response.content_type, len(await response.read())) == ("video/mp4", 3)


@stand_in_only
async def test_a_silent_or_lost_socket_costs_no_prompt(site: Site) -> None:
    before = site.stats()["sockets"]
    fetch_script(site, silent=True)
    try:
        assert (await site.run("painting", color=3))[0] == 200
    finally:
        fetch_script(site, silent=False)
    await asyncio.to_thread(until, "the socket was made anew", lambda: site.stats()["sockets"] > before)
    asking = asyncio.create_task(site.run("slow"))
    await asyncio.to_thread(until, "it runs", lambda: site.stats()["running"])
    fetch_script(site, end_sockets=True)
    assert (await asking)[0] == 200


def fetch_script(site: Site, **said: Any) -> None:
    import urllib.request

    request = urllib.request.Request(f"{site.server_url}/_script", json.dumps(said).encode())
    with urllib.request.urlopen(request, timeout=10):
        pass


@stand_in_only
@pytest.mark.parametrize("how", [("--cancels", "id"), ("--cancels", "all", "--no-ids")])
async def test_older_servers_are_cancelled_without_hitting_others(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    with House(tmp_path) as house:
        arguments = ("tests.support.comfyui_server", "--step-s", "0.01", *how)
        url = house.listening(house.children.start("comfyui", *arguments))
        gateway, key = start(house, tmp_path, [url])
        site = Site(house, gateway, key, url)
        for _ in range(3):
            await test_a_client_that_leaves_ends_its_prompt_alone(site)


def runs(url: str) -> bool:
    return fetch(f"{url}/_stats")["running"] is not None


@stand_in_only
async def test_two_servers_share_the_work_and_one_that_dies_is_left(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        children = [house.children.start(f"comfyui{n}", "tests.support.comfyui_server") for n in (1, 2)]
        urls = [house.listening(child) for child in children]
        gateway, key = start(house, tmp_path, urls)
        site = Site(house, gateway, key, urls[0])
        log = tmp_path / "agent.log"  # two lines for each server: its prompts, and its own paths
        until("both are offered", lambda: log.read_text().count("engine serves") == 4)
        answers = await asyncio.gather(*(site.run("slow", steps=10) for _ in range(4)))
        assert [status for status, _ in answers] == 4 * [200]
        assert [fetch(f"{url}/_stats")["done"] for url in urls] == [2, 2]
        asking = [asyncio.create_task(site.run("slow", steps=60)) for _ in range(2)]
        for url in urls:
            await asyncio.to_thread(until, "it runs", partial(runs, url))
        children[0].signal(signal.SIGKILL)
        assert [(await each)[0] for each in asking] == [200, 200]  # the lost one was begun anew elsewhere
