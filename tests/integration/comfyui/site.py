"""A gateway and an agent with ComfyUI servers, the workflows that are stored there, and what clients send.

The tests run against a stand-in, and against a real server those that any can pass, whose nodes need no
models: ``TRUNKLINE_TEST_COMFYUI=http://HOST:PORT tests/run tests/integration/comfyui``.
"""

import asyncio
import io
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.engine_site import EngineSite
from tests.support.processes import Gateway, House, fetch, until

REAL = os.environ.get("TRUNKLINE_TEST_COMFYUI")
stand_in_only = pytest.mark.skipif(REAL is not None, reason="what the stand-in alone does")

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
    canvas = {"1": node("EmptyImage", width=256, height=256, batch_size=1, color=0)}
    steps = node("Steps", image=["1", 0], steps=20, step_s=0.02)
    sampling = {
        "workflow": {**canvas, "2": steps, "9": save},
        "inputs": {"steps": {"path": "2.inputs.steps", "type": "integer"}},
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
        "sampling": sampling,
        "clip": clip,
        "fails": {**begins, "2": node("Fails", image=["1", 0]), "9": save},
        "floods": {**begins, "2": node("Floods", image=["1", 0], count=20_000), "9": save},
    }


@dataclass(frozen=True, slots=True)
class ComfyUISite(EngineSite):
    """``server_url`` is the first server's."""

    async def run(self, workflow: str, **inputs: Any) -> tuple[int, bytes]:
        async with self.ask(f"/v1/workflows/{workflow}", {"inputs": inputs}) as response:
            return response.status, await response.read()

    async def error(self, workflow: str, **inputs: Any) -> tuple[int, Any]:
        status, body = await self.run(workflow, **inputs)
        return status, json.loads(body)["error"]

    def script(self, **said: Any) -> None:
        """Have the stand-in behave so from now on."""
        fetch(f"{self.server_url}/_script", body=said)

    async def submitted(self, workflow: str, **inputs: Any) -> str:
        """The id of a job that runs the workflow."""
        headers = {"prefer": "respond-async"}
        async with self.ask(f"/v1/workflows/{workflow}", {"inputs": inputs}, headers) as response:
            assert response.status == 202
            return str((await response.json())["id"])

    async def ended(self, job_id: str) -> Any:
        """The job, once it is over."""
        for _ in range(3000):
            async with self.ask(f"/v1/jobs/{job_id}") as response:
                job = await response.json()
            if job["status"] not in ("queued", "running"):
                return job
            await asyncio.sleep(0.1)
        raise AssertionError(f"the job did not end: {job}")

    async def leaves_a_prompt(self) -> None:
        """A client that leaves ends its own prompt, and no other."""
        request = f"leaves-{time.monotonic_ns()}"
        asking = asyncio.create_task(self._run_slowly(request))
        prompt_id = await self._prompt_of(request)
        waiting = asyncio.create_task(self.run("painting", color=5))
        asking.cancel()
        status, body = await waiting
        assert (status, size_and_color(body)[1]) == (200, (0, 0, 5))
        after = self.stats()
        assert after["interrupted"].count(prompt_id) == 1  # what clients left before may end meanwhile, too

    async def _run_slowly(self, request: str) -> None:
        body = {"inputs": {"steps": 2000}}
        async with self.ask("/v1/workflows/slow", body, {"x-request-id": request}) as response:
            await response.read()

    async def _prompt_of(self, request: str) -> str:
        """The id of the request's prompt, once it runs: one that a client left may run before it."""
        found: list[str] = []

        def runs() -> bool:
            running = fetch(f"{self.server_url}/queue")["queue_running"]
            found[:] = [each[1] for each in running if each[3].get("trunkline_request") == request]
            return bool(found)

        await asyncio.to_thread(until, "it runs", runs)
        return found[0]


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


def size_and_color(data: bytes) -> tuple[tuple[int, int], Any]:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return image.size, image.getpixel((0, 0))
