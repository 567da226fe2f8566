"""A model's server process over HTTP, inside the test's event loop."""

import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import orjson
import pytest

from agent.serve import http
from agent.serve.http import ModelHTTP, openapi
from agent.serve.server import ModelServer
from tests.agent.serve.running import running


@contextlib.asynccontextmanager
async def served(
    name: str, scratch: Path, key: str | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, ModelServer]]:
    async with running(name, scratch) as model:
        transport = httpx.ASGITransport(ModelHTTP(model.server, key))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            yield client, model.server


async def test_the_surface_of_a_model(tmp_path: Path) -> None:
    async with served("Several", tmp_path) as (client, server):
        models = (await client.get("/v1/models")).json()["data"]
        assert [(entry["id"], entry["status"], entry["slots"]) for entry in models] == [
            ("one", "loaded", 16),
            ("two", "loaded", 16),
        ]
        assert (await client.get("/v1/models/two")).json()["id"] == "two"
        assert (await client.get("/health")).json() == {"status": "READY", "running": 0, "waiting": 0}
        assert list((await client.get("/openapi.json")).json()["paths"]) == ["/predict", "/v1/classify"]
        said = (await client.post("/v1/classify", content=b"1234", headers={"x-model": "two"})).json()
        assert said == {"model": "two", "path": "/v1/classify", "bytes": 4}
        said = (await client.post("/predict", content=b"1", headers={"x-model": "three"})).json()
        assert said["model"] == "one"
        metrics = (await client.get("/metrics")).text
        assert "trunkline_engine_items 2.0" in metrics
        assert 'trunkline_engine_batch_size_bucket{le="1.0"} 2.0' in metrics
        assert "trunkline_engine_batch_size_sum 2.0" in metrics
        assert "trunkline_engine_requests_waiting 0.0" in metrics
        assert server.facts is not None
        assert openapi(server.facts)["info"]["title"] == "one"


async def test_a_long_body_is_passed_on_whole_and_one_too_long_is_refused(tmp_path: Path) -> None:
    async with served("Several", tmp_path) as (client, server):
        size = 3_000_000

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(size // 1000):
                yield b"x" * 1000

        assert (await client.post("/predict", content=pieces())).json()["bytes"] == size
        assert (await client.post("/predict", content=b"")).json()["bytes"] == 0
        assert server.facts is not None
        most = server.facts.max_body_bytes
        refused = await client.post("/predict", content=b"", headers={"content-length": str(most + 1)})
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
        assert server.admission.taken == 0


@pytest.mark.parametrize("room", [0, 100_000, 140_001])
async def test_a_long_body_is_passed_on_whole_while_the_memory_file_system_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    def write(descriptor: int, data: memoryview) -> int:
        left = room - os.fstat(descriptor).st_size
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(descriptor, data[:left], room - left)

    async with served("Echo", tmp_path) as (client, server):
        monkeypatch.setattr(http, "os", SimpleNamespace(**vars(os) | {"write": write}))
        body = orjson.dumps(list(range(50_000)))
        pieces = [body[at : at + 20_000] for at in range(0, len(body), 20_000)]

        async def sent() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        assert (await client.post("/predict", content=sent())).json() == orjson.loads(body)
        assert not [name for name in os.listdir(tmp_path) if name.startswith("body")]
        assert server.admission.taken == 0


async def test_paths_that_are_not_there(tmp_path: Path) -> None:
    async with served("Echo", tmp_path) as (client, _):
        for method, path, status, code in (
            ("GET", "/nowhere", 404, "unknown_url"),
            ("POST", "/nowhere", 404, "unknown_url"),
            ("POST", "/v1/embeddings", 404, "unknown_url"),
            ("GET", "/predict", 405, "method_not_allowed"),
            ("GET", "/v1/models/three", 404, "unknown_url"),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), (method, path)


async def test_errors_have_the_projects_shape(tmp_path: Path) -> None:
    async with served("Moody", tmp_path) as (client, _):
        answer = await client.post("/predict", content=b"{")
        assert answer.status_code == 400
        assert answer.json()["error"] == {
            "message": "The body is not JSON.",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_json",
        }
        answer = await client.post("/predict", content=orjson.dumps("memory"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "out_of_memory")


async def test_on_tcp_every_request_needs_the_key(tmp_path: Path) -> None:
    async with served("Echo", tmp_path, key="secret") as (client, _):
        assert (await client.post("/predict", content=b"1")).status_code == 401
        assert (await client.get("/health")).status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert (await client.post("/predict", content=b"[1]", headers=headers)).json() == [1]


async def test_a_stream_is_a_stream_of_events(tmp_path: Path) -> None:
    async with served("Counter", tmp_path) as (client, server):
        answer = await client.post("/predict", content=b"2")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text == "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
        assert server.admission.taken == 0


async def test_a_stream_that_is_broken_off_does_not_count_as_an_answer(tmp_path: Path) -> None:
    async with served("BreakingOff", tmp_path) as (client, server):
        with contextlib.suppress(AssertionError):  # of the transport, as the response has no end
            await client.post("/predict", content=b"2")
        metrics = (await client.get("/metrics")).text
        assert "trunkline_engine_request_seconds_count 0.0" in metrics
        assert 'trunkline_engine_errors_total{code="computation_failed"} 1.0' in metrics
        assert server.admission.taken == 0


async def test_a_model_that_cannot_compute_is_not_ready(tmp_path: Path) -> None:
    async with served("Moody", tmp_path) as (client, server):
        for _ in range(5):
            await client.post("/predict", content=orjson.dumps("crash"))
        await server.ended
        answer = await client.post("/predict", content=b"1")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_ready")
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "FAILED")
        entry = (await client.get("/v1/models")).json()["data"][0]
        assert entry["status"] == "failed"
        assert "SIGSEGV" in entry["reason"]
