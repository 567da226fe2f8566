"""ComfyUI behind an agent: workflows with declared inputs, as images, jobs and OpenAI's requests."""

import base64
import json
from typing import Any

import aiohttp
import openai
import pytest

from tests.integration.comfyui.site import (
    REAL,
    ComfyUISite,
    copying,
    node,
    size_and_color,
    stand_in_only,
)
from tests.support.comfyui_server import picture


async def test_the_declared_inputs_make_the_image_that_is_the_answer(site: ComfyUISite) -> None:
    body = {"inputs": {"color": 0x0000FF, "width": 40}}
    async with site.ask("/v1/workflows/painting", body) as response:
        assert (response.status, response.content_type) == (200, "image/png")
        size, color = size_and_color(await response.read())
    assert color == (0, 0, 255)
    if REAL:
        assert size == (40, 32)


async def test_several_images_come_as_json_in_base64(site: ComfyUISite) -> None:
    status, body = await site.run("painting", color=0x00FF00, count=3)
    outputs = json.loads(body)["outputs"]
    assert (status, [each["type"] for each in outputs]) == (200, 3 * ["image/png"])
    assert {size_and_color(base64.b64decode(each["data"]))[1] for each in outputs} == {(0, 255, 0)}
    async with site.ask("/v1/workflows/painting", {"inputs": {}}, {"accept": "application/json"}) as response:
        assert len((await response.json())["outputs"]) == 1


async def test_an_image_that_is_sent_is_the_nodes_input(site: ComfyUISite) -> None:
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


async def test_a_workflow_in_the_request_is_run(site: ComfyUISite) -> None:
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
    site: ComfyUISite, inputs: dict[str, Any], code: str, param: str
) -> None:
    status, error = await site.error("painting", **inputs)
    assert (status, error["code"], error["param"]) == (400, code, param)
    assert (await site.run("painting", color=1))[0] == 200


async def test_a_missing_input_and_a_missing_node_are_told(site: ComfyUISite) -> None:
    status, error = await site.error("copying")
    assert (status, error["code"], error["param"]) == (400, "missing_input", "inputs.image")
    async with site.ask("/v1/workflows/comfyui", {"workflow": {"1": node("NoSuchNode")}}) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (400, "missing_node")
        assert "NoSuchNode" in error["message"]
    for workflow, why in (("lacking", "the server has no node NoSuchNode"), ("broken", "it is no JSON")):
        assert (await site.error(workflow))[0] == 503
        assert why in (site.house.directory / "agent.log").read_text()


def test_openais_client_makes_images(site: ComfyUISite) -> None:
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


async def test_a_job_has_the_image_as_its_result(site: ComfyUISite) -> None:
    job_id = await site.submitted("painting", color=0x00FF00)
    assert (await site.ended(job_id))["status"] == "succeeded"
    async with site.ask(f"/v1/jobs/{job_id}/result") as response:
        assert response.content_type == "image/png"
        assert size_and_color(await response.read())[1] == (0, 255, 0)
    asked = {"path": "/v1/workflows/painting", "body": {"inputs": {"color": 0xFF0000}}}
    async with site.ask("/v1/jobs", asked) as response:
        job_id = (await response.json())["id"]
    assert (await site.ended(job_id))["status"] == "succeeded"
    async with site.ask(f"/v1/jobs/{job_id}/result") as response:
        assert size_and_color(await response.read())[1] == (255, 0, 0)


@stand_in_only
async def test_progress_and_previews_reach_the_job_and_the_stream(site: ComfyUISite) -> None:
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
async def test_errors_of_nodes_and_outputs_that_are_too_large_are_told(site: ComfyUISite) -> None:
    status, error = await site.error("clip", size=2 << 20)
    assert (status, error["code"]) == (422, "output_too_large")
    async with site.ask("/v1/workflows/fails", {"inputs": {}}) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (500, "workflow_failed")
        assert error["message"] == "Node 2 (Fails) failed: RuntimeError: this node always fails"


@stand_in_only
async def test_a_video_is_made(site: ComfyUISite) -> None:
    async with site.ask("/v1/videos", {"model": "clip", "prompt": "waves"}) as response:
        video_id = (await response.json())["id"]
    assert (await site.ended(video_id))["status"] == "succeeded"
    async with site.ask(f"/v1/videos/{video_id}/content") as response:
        assert (response.content_type, len(await response.read())) == ("video/mp4", 3)


async def test_clients_are_told_what_workflows_make(site: ComfyUISite) -> None:
    async with site.ask("/v1/models") as response:
        told = {model["id"]: model for model in (await response.json())["data"]}
    assert told["painting"]["capabilities"] == ["text-to-image"]
    assert told["copying"]["capabilities"] == ["image-to-image"]
    assert "images" in told["painting"]["routes"]


@stand_in_only
async def test_how_long_a_prompt_takes_is_predicted_by_its_steps(site: ComfyUISite) -> None:
    """The workflow's prompts differ in nothing but their steps, of 0.02 s each."""
    for steps in (2, 40) * 3:
        assert (await site.run("sampling", steps=steps))[0] == 200
    predicted: dict[int, float] = {}
    for steps in (400, 4000):
        body = {"inputs": {"steps": steps}}
        async with site.ask("/v1/workflows/sampling", body, {"prefer": "respond-async"}) as response:
            job = await response.json()
        predicted[steps] = job["predicted_completion_at"] - job["created_at"]
        async with site.ask(f"/v1/jobs/{job['id']}/cancel", {}) as response:
            assert response.status == 200
    assert predicted[400] >= 4, "8 s"
    assert predicted[4000] >= 5 * predicted[400], predicted
