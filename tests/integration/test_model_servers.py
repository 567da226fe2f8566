"""TensorFlow Serving, TorchServe and TGI behind an agent: their clients with only the base URL changed.

All three are stand-ins, and TGI's client is Hugging Face's own.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

from gateway.domain.scopes import limited
from tests.support.engine_site import EngineSite
from tests.support.model_servers import MODEL, TEXT
from tests.support.processes import House, until

SERVERS = ("tensorflow", "torchserve", "tgi")
BINARY = {"content-type": "application/octet-stream"}


def start(house: House, directory: Path, kind: str) -> EngineSite:
    """A gateway, and an agent with the server."""
    url = house.listening(house.children.start(kind, "tests.support.model_servers", kind))
    gateway = house.gateway()
    key = gateway.key("tests")
    protocol = "" if kind == "tgi" else f"{kind}:"
    lines = ["[[engine]]", f'url = "{protocol}{url}"', "refresh_s = 0.2"]
    lines += [] if kind == "tgi" else [f'models = ["{MODEL}"]']
    config = directory / "agent.toml"
    config.write_text("\n".join(lines))
    house.agent(gateway, None, "--config", str(config))
    house.wait_for_model(gateway, key, MODEL)
    return EngineSite(house, gateway, key, url)


def sites(kind: str, factory: pytest.TempPathFactory) -> Iterator[EngineSite]:
    directory = factory.mktemp(kind)
    with House(directory) as house:
        yield start(house, directory, kind)


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSite]:
    yield from sites("tensorflow", tmp_path_factory)


@pytest.fixture(scope="module")
def torchserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSite]:
    yield from sites("torchserve", tmp_path_factory)


@pytest.fixture(scope="module")
def tgi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSite]:
    yield from sites("tgi", tmp_path_factory)


async def answers(site: EngineSite, path: str, body: object = None, method: str = "") -> list[Any]:
    """What the server says itself, and what comes through the gateway: status and JSON of each."""
    found = []
    for direct in (True, False):
        async with site.ask(path, body, method=method, direct=direct) as response:
            found.append((response.status, await response.json(content_type=None)))
    return found


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"/v1/models/{MODEL}:predict", {"instances": [1.0, 5.0]}, 200),
        (f"/v1/models/{MODEL}/versions/1:predict", {"instances": [4.0]}, 200),
        (f"/v1/models/{MODEL}/versions/1", None, 200),
        (f"/v1/models/{MODEL}/metadata", None, 200),
        (f"/v1/models/{MODEL}/versions/9:predict", {"instances": [4.0]}, 404),
        (f"/v1/models/{MODEL}:classify", {"instances": [4.0]}, 400),
        (f"/v1/models/{MODEL}:predict", b"no json", 400),
    ],
)
async def test_tensorflow_serving_answers_at_its_own_paths(
    tensorflow: EngineSite, path: str, body: object, status: int
) -> None:
    direct, through = await answers(tensorflow, path, body)
    assert direct == through
    assert direct[0] == status


async def test_a_missing_version_costs_the_model_no_route(tensorflow: EngineSite) -> None:
    for path, status in (("/versions/9:predict", 404), (":predict", 200)):
        async with tensorflow.ask(f"/v1/models/{MODEL}{path}", {"instances": [2.0]}) as response:
            assert response.status == status
    async with tensorflow.ask(f"/v1/models/{MODEL}") as response:
        said = await response.json()
    assert (said["id"], said["routes"]) == (MODEL, ["any", "predict"])


async def test_an_unknown_model_of_tensorflow_serving_is_an_error_in_its_shape(
    tensorflow: EngineSite,
) -> None:
    async with tensorflow.ask("/v1/models/none:predict", {"instances": []}) as response:
        assert (response.status, list(await response.json())) == (404, ["error"])


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("path", [f"/predictions/{MODEL}", f"/predictions/{MODEL}/1.0"])
async def test_torchserve_takes_bytes_and_files(torchserve: EngineSite, path: str, method: str) -> None:
    sent = bytes(range(256)) * 8000
    async with torchserve.ask(path, sent, BINARY, method) as response:
        assert (response.status, await response.read()) == (200, sent[::-1])


async def test_torchserves_answers_come_piece_by_piece(torchserve: EngineSite) -> None:
    async with torchserve.ask(f"/predictions/{MODEL}", b"stream", BINARY) as response:
        assert await response.read() == b"one two three"


async def test_torchserves_health_models_and_errors(torchserve: EngineSite) -> None:
    async with torchserve.ask("/ping") as response:
        assert await response.json() == {"status": "Healthy"}
    async with torchserve.ask("/models") as response:
        assert (await response.json())["models"] == [{"modelName": MODEL, "modelUrl": MODEL}]
    direct, through = await answers(torchserve, "/predictions/none", b"x")
    assert direct[0] == through[0] == 404
    assert (direct[1].keys(), direct[1]["type"]) == (through[1].keys(), through[1]["type"])


def test_hugging_faces_client_is_answered_whole_and_as_a_stream(
    tgi: EngineSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # tests/run sets it for the hub
    client = InferenceClient(model=tgi.gateway.url, token=tgi.key)
    assert client.text_generation("say", max_new_tokens=3) == "a lighthouse at"
    assert "".join(client.text_generation("say", stream=True)) == TEXT
    details = list(client.text_generation("say", stream=True, details=True))
    assert details[-1].generated_text == TEXT
    with pytest.raises(ValidationError, match="cannot be empty"):
        client.text_generation("", stream=False)


async def test_tgi_answers_at_its_own_paths(tgi: EngineSite) -> None:
    direct, through = await answers(tgi, "/generate", {"inputs": "say"})
    assert direct == through == (200, {"generated_text": TEXT})
    async with tgi.ask("/info") as response:
        assert (await response.json())["model_id"] == MODEL
    async with tgi.ask("/generate_stream", {"inputs": "say"}) as response:
        lines = [line for line in (await response.text()).splitlines() if line.startswith("data:")]
    assert json.loads(lines[-1].removeprefix("data:"))["generated_text"] == TEXT
    assert len(lines) == len(TEXT.split())


async def test_a_key_for_the_model_alone_need_not_name_it(tgi: EngineSite) -> None:
    key = tgi.gateway.key("scoped", limited(models=[MODEL], routes=["generate"]))
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as session,
        session.post(f"{tgi.gateway.url}/generate", json={"inputs": "say"}) as response,
    ):
        assert (response.status, await response.json()) == (200, {"generated_text": TEXT})


SLOW: dict[str, tuple[str, object]] = {
    "tensorflow": (f"/v1/models/{MODEL}:predict", {"instances": ["slow"]}),
    "torchserve": (f"/predictions/{MODEL}", b"slow"),
    "tgi": ("/generate_stream", {"inputs": "slow"}),
}


@asynccontextmanager
async def asking(site: EngineSite, kind: str) -> AsyncIterator[asyncio.Task[tuple[int, bytes]]]:
    """A request that takes a minute, once the server works on it."""
    before = site.stats()["begun"]
    path, body = SLOW[kind]

    async def ask() -> tuple[int, bytes]:
        async with site.ask(path, body) as response:
            return response.status, await response.read()

    task = asyncio.create_task(ask())
    await asyncio.to_thread(until, "it works", lambda: site.stats()["begun"] > before)
    yield task


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_client_that_leaves_ends_the_work(kind: str, request: pytest.FixtureRequest) -> None:
    site: EngineSite = request.getfixturevalue(kind)
    before = site.stats()["cancelled"]
    async with asking(site, kind) as task:
        task.cancel()
        await asyncio.to_thread(until, "it was told", lambda: site.stats()["cancelled"] > before)


@pytest.mark.parametrize(
    ("kind", "members"), [("tensorflow", ["error"]), ("torchserve", ["code", "type", "message"])]
)
async def test_a_server_that_dies_midway_is_an_error_and_gone(
    kind: str, members: list[str], tmp_path: Path
) -> None:
    with House(tmp_path) as house:
        site = start(house, tmp_path, kind)
        async with asking(site, kind) as task:
            next(child for child in house.children if child.name == kind).signal(signal.SIGKILL)
            status, body = await task
        assert status in (502, 503)
        assert list(json.loads(body)) == members
        await asyncio.to_thread(until, "it is gone", lambda: MODEL not in site.gateway.models(site.key))
