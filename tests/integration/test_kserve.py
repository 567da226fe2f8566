"""A server of KServe's Open Inference Protocol behind an agent and a gateway, asked with plain HTTP.

The tests run against a stand-in, and against a real server those that any can pass, with the first model that
its index calls ready and that takes a tensor of six numbers:
``TRUNKLINE_TEST_KSERVE=http://HOST:PORT tests/run tests/integration/test_kserve.py``.
"""

import asyncio
import os
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.engine_site import EngineSite
from tests.support.kserve_server import SIZE_OF_JSON, WHY_BROKEN
from tests.support.processes import House, fetch, until

REAL = os.environ.get("TRUNKLINE_TEST_KSERVE")
stand_in_only = pytest.mark.skipif(REAL is not None, reason="what the stand-in alone does")

VALUES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
TENSOR = {"name": "x", "datatype": "FP32", "shape": [2, 3]}


@dataclass(frozen=True, slots=True)
class KServeSite(EngineSite):
    model: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KServeSite]:
    with House(tmp_path_factory.mktemp("kserve")) as house:
        url = REAL or house.listening(house.children.start("kserve", "tests.support.kserve_server"))
        index = fetch(f"{url}/v2/repository/index", body={})
        model = next(each["name"] for each in index if each["state"] == "READY")
        gateway = house.gateway()
        key = gateway.key("tests")
        house.agent(gateway, f"kserve:{url}")
        house.wait_for_model(gateway, key, model)
        yield KServeSite(house, gateway, key, url, model)


def json_body(**parameters: Any) -> bytes:
    return orjson.dumps({"parameters": parameters, "inputs": [TENSOR | {"data": VALUES}]})


async def test_the_agent_finds_the_models_and_the_gateway_lists_them(site: KServeSite) -> None:
    async with site.ask("/v2/repository/index", b"") as response:
        listed = {each["name"]: each["state"] for each in await response.json()}
    assert listed[site.model] == "READY"
    async with site.ask(f"/v2/models/{site.model}/ready") as response:
        assert (response.status, await response.json()) == (200, {"name": site.model, "ready": True})
    async with site.ask("/v2/health/ready") as response:
        assert await response.json() == {"ready": True}


async def test_metadata_are_the_servers(site: KServeSite) -> None:
    found = []
    for direct in (True, False):
        async with site.ask(f"/v2/models/{site.model}", direct=direct) as response:
            assert response.status == 200
            found.append(await response.json())
    assert found[0] == found[1]


async def test_json_tensors_get_the_servers_answer(site: KServeSite) -> None:
    outputs = []
    for direct in (True, False):
        path = f"/v2/models/{site.model}/versions/1/infer"
        async with site.ask(path, json_body(), direct=direct) as response:
            assert response.status == 200
            outputs.append((await response.json())["outputs"])
    assert outputs[0] == outputs[1]
    assert outputs[0][0]["data"] == [2 * value for value in VALUES]


async def test_errors_of_the_gateway_are_in_its_shape_and_the_servers_as_they_are(site: KServeSite) -> None:
    async with site.ask("/v2/models/no-such-model/infer", json_body()) as response:
        assert (response.status, list(await response.json())) == (404, ["error"])
    said = []
    for direct in (True, False):
        async with site.ask(f"/v2/models/{site.model}/infer", b"no json", direct=direct) as response:
            said.append((response.status, await response.read()))
    assert said[0] == said[1]
    assert 400 <= said[0][0] < 500


@stand_in_only
async def test_binary_tensors_pass_as_bytes_both_ways(site: KServeSite) -> None:
    data = struct.pack("<6f", *VALUES) * 40_000
    tensor = TENSOR | {"shape": [40_000, 6], "parameters": {"binary_data_size": len(data)}}
    begins = orjson.dumps({"inputs": [tensor]})
    async with site.ask(
        "/v2/models/double/infer", begins + data, headers={SIZE_OF_JSON: str(len(begins))}
    ) as response:
        assert response.status == 200
        body = await response.read()
        json_bytes = int(response.headers[SIZE_OF_JSON])
    assert orjson.loads(body[:json_bytes])["outputs"][0]["parameters"] == {"binary_data_size": 2 * len(data)}
    assert body[json_bytes:] == data + data


@stand_in_only
async def test_a_tensor_whose_size_lies_does_not_reach_the_server(site: KServeSite) -> None:
    before = site.stats()["infers"]
    begins = orjson.dumps({"inputs": [TENSOR | {"parameters": {"binary_data_size": 24}}]})
    async with site.ask(
        "/v2/models/double/infer", begins + bytes(20), headers={SIZE_OF_JSON: str(len(begins))}
    ) as response:
        assert response.status == 400
        assert "20 bytes follow the JSON" in (await response.json())["error"]
    assert site.stats()["infers"] == before


@stand_in_only
async def test_a_model_that_is_not_loaded_is_loaded_for_a_request(site: KServeSite) -> None:
    async with site.ask("/v2/models/spare/ready") as response:
        assert response.status == 400
    async with site.ask("/v2/models/spare/infer", json_body()) as response:
        assert response.status == 200
        assert (await response.json())["model_name"] == "spare"
    assert site.stats()["loads"] == 1


@stand_in_only
async def test_a_model_that_cannot_be_loaded_says_why(site: KServeSite) -> None:
    async with site.ask("/v2/models/broken/infer", json_body()) as response:
        assert response.status == 503
        assert "cannot be loaded" in (await response.json())["error"]
    assert WHY_BROKEN in site.house.logs()["agent"]
    async with site.ask(f"/v2/models/{site.model}/infer", json_body()) as response:
        assert response.status == 200


@stand_in_only
async def test_a_client_that_leaves_ends_the_work(site: KServeSite) -> None:
    before = site.stats()

    async def ask() -> None:
        async with site.ask("/v2/models/double/infer", json_body(delay_s=60)):
            pass

    asking = asyncio.create_task(ask())
    await asyncio.to_thread(until, "it works", lambda: site.stats()["infers"] > before["infers"])
    asking.cancel()
    cancelled = before["cancelled"]
    await asyncio.to_thread(until, "it was told", lambda: site.stats()["cancelled"] > cancelled)


@stand_in_only
async def test_a_server_that_dies_midway_is_an_error_and_gone(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        child = house.children.start("kserve", "tests.support.kserve_server")
        url = house.listening(child)
        gateway = house.gateway()
        key = gateway.key("tests")
        house.agent(gateway, f"kserve:{url}")
        house.wait_for_model(gateway, key, "double")
        site = KServeSite(house, gateway, key, url, "double")

        async def ask() -> tuple[int, Any]:
            async with site.ask("/v2/models/double/infer", json_body(delay_s=60)) as response:
                return response.status, await response.json()

        asking = asyncio.create_task(ask())
        await asyncio.to_thread(until, "it works", lambda: site.stats()["infers"])
        child.signal(signal.SIGKILL)
        status, said = await asking
        assert (status in (502, 503), list(said)) == (True, ["error"])
        await asyncio.to_thread(until, "it is gone", lambda: "double" not in gateway.models(key))
