"""Servers that answer as TensorFlow Serving, TorchServe and TGI do.

``python -m tests.support.model_servers tensorflow|torchserve|tgi`` says where it listens, and serves until
its process ends. What they answer is as TensorFlow Serving's api_rest.md, TorchServe's inference_api.md and
TGI's router/src/server.rs say. ``GET /_stats`` tells what became of requests.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import Any

import orjson
from aiohttp import web

from tests.support.served_app import serve_app

MODEL = "half"
TEXT = "a lighthouse at night"


class ModelServer:
    """What is common to the three: the routes, and what was asked."""

    def __init__(self) -> None:
        self.counts = {"begun": 0, "cancelled": 0}
        self.app = web.Application(client_max_size=1 << 30)
        self.app.router.add_get("/_stats", self._stats)

    async def _stats(self, request: web.Request) -> web.Response:
        return web.json_response(self.counts)

    @contextmanager
    def counted(self) -> Any:
        """A request that is cancelled inside counts as such."""
        self.counts["begun"] += 1
        try:
            yield
        except (asyncio.CancelledError, ConnectionResetError):
            self.counts["cancelled"] += 1
            raise


class TensorFlowServing(ModelServer):
    """Serves ``half``, whose version 1 halves numbers; an instance ``"slow"`` takes a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.app.router.add_route("*", "/v1/models/{rest:.+}", self._any)

    async def _any(self, request: web.Request) -> web.Response:
        place, _, verb = request.match_info["rest"].partition(":")
        name, _, version = place.removesuffix("/metadata").partition("/versions/")
        if name != MODEL or version not in ("", "1"):
            wanted = f"Specific({name}, {version})" if version else f"Latest({name})"
            return web.json_response({"error": f"Servable not found for request: {wanted}"}, status=404)
        if verb and request.method == "POST":
            return await self._predict(request, verb)
        if place.endswith("/metadata"):
            return web.json_response(
                {"model_spec": {"name": name, "signature_name": "", "version": "1"}, "metadata": SIGNATURE}
            )
        state = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return web.json_response({"model_version_status": [state]})

    async def _predict(self, request: web.Request, verb: str) -> web.Response:
        with self.counted():
            try:
                instances = orjson.loads(await request.read())["instances"]
            except orjson.JSONDecodeError as error:
                return web.json_response({"error": f"JSON Parse error: {error}"}, status=400)
            if verb != "predict":
                return web.json_response({"error": f"Expected {verb} signature method_name"}, status=400)
            if instances == ["slow"]:
                await asyncio.sleep(60)
            return web.json_response({"predictions": [each / 2 for each in instances]})


def _tensor(name: str) -> dict[str, Any]:
    shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    return {"dtype": "DT_FLOAT", "tensor_shape": shape, "name": f"{name}:0"}


SIGNATURE = {
    "signature_def": {
        "signature_def": {
            "serving_default": {
                "inputs": {"x": _tensor("x")},
                "outputs": {"y": _tensor("y")},
                "method_name": "tensorflow/serving/predict",
            }
        }
    }
}


class TorchServe(ModelServer):
    """Serves ``half``, which answers with the body backwards; the body ``slow`` takes a minute, and
    ``stream`` comes piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.app.router.add_get("/ping", self._ping)
        self.management = web.Application()
        self.management.router.add_get("/models", self._models)
        self.management.router.add_get("/models/{model}", self._described)
        self.workers: dict[str, list[str]] = {
            MODEL: ["READY", "READY"],
            "cold": [],
            "starting": ["UNLOADING"],
        }
        """Model → what the management API says of its workers."""
        for path in ("/predictions/{model}", "/predictions/{model}/{version}"):
            for method in ("POST", "PUT"):
                self.app.router.add_route(method, path, self._predict)

    async def _models(self, request: web.Request) -> web.Response:
        """Two to a page, whatever is asked for."""
        start, names = int(request.query.get("next_page_token", 0)), sorted(self.workers)
        said: dict[str, Any] = {
            "models": [{"modelName": name, "modelUrl": f"{name}.mar"} for name in names[start : start + 2]]
        }
        if start + 2 < len(names):
            said["nextPageToken"] = str(start + 2)
        return web.json_response(said)

    async def _described(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        workers = [{"id": str(9000 + place), "status": each} for place, each in enumerate(self.workers[name])]
        described = {"modelName": name, "modelVersion": "1.0", "batchSize": 4, "workers": workers}
        return web.json_response([described])

    async def _ping(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "Healthy"})

    async def _predict(self, request: web.Request) -> web.StreamResponse:
        name, version = request.match_info["model"], request.match_info.get("version", "1.0")
        if (name, version) != (MODEL, "1.0"):
            said = {"code": 404, "type": "ModelNotFoundException", "message": f"Model not found: {name}"}
            return web.json_response(said, status=404)
        with self.counted():
            body = await request.read()
            if body == b"slow":
                await asyncio.sleep(60)
            if body != b"stream":
                return web.Response(body=body[::-1])
            response = web.StreamResponse()
            await response.prepare(request)
            for piece in (b"one ", b"two ", b"three"):
                await response.write(piece)
                await asyncio.sleep(0.01)
            return response


class TextGeneration(ModelServer):
    """TGI with a model that writes :data:`TEXT`, a word a token."""

    def __init__(self) -> None:
        super().__init__()
        for path in ("/", "/generate", "/generate_stream"):
            self.app.router.add_post(path, self._generate)
        self.app.router.add_get("/info", self._info)
        self.app.router.add_get("/health", self._healthy)
        self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_get("/api-doc/openapi.json", self._openapi)

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_id": MODEL, "max_concurrent_requests": 32, "version": "3.3.6"})

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": MODEL}]}
        )

    async def _openapi(self, request: web.Request) -> web.Response:
        posted = (
            "/",
            "/generate",
            "/generate_stream",
            "/tokenize",
            "/v1/chat/completions",
            "/v1/completions",
        )
        paths: dict[str, Any] = {path: {"post": {}} for path in posted}
        return web.json_response({"openapi": "3.0.3", "paths": paths | {"/info": {"get": {}}}})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        said = orjson.loads(await request.read())
        parameters = said.get("parameters") or {}
        words = TEXT.split()[: parameters.get("max_new_tokens") or 100]
        if said["inputs"] == "":
            return web.json_response(
                {"error": "Input validation error: `inputs` cannot be empty", "error_type": "validation"},
                status=422,
            )
        with self.counted():
            if request.path == "/generate_stream" or (request.path == "/" and said.get("stream")):
                return await self._stream(request, words, 60 if said["inputs"] == "slow" else 0.01)
            answer = {"generated_text": " ".join(words)}
            return web.json_response([answer] if request.path == "/" else answer)

    async def _stream(self, request: web.Request, words: list[str], pause_s: float) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        async for event in _events(words):
            await response.write(b"data:" + orjson.dumps(event) + b"\n\n")
            await asyncio.sleep(pause_s)
        return response


async def _events(words: list[str]) -> AsyncIterator[dict[str, Any]]:
    for place, word in enumerate(words):
        text = word if not place else f" {word}"
        last = place == len(words) - 1
        yield {
            "index": place + 1,
            "token": {"id": place, "text": text, "logprob": -0.5, "special": False},
            "generated_text": " ".join(words) if last else None,
            "details": None,
        }


SERVERS = {"tensorflow": TensorFlowServing, "torchserve": TorchServe, "tgi": TextGeneration}


async def main(kind: str) -> None:
    await serve_app(SERVERS[kind]().app, handler_cancellation=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
