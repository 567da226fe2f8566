"""A server of KServe's Open Inference Protocol (v2) as Triton answers it with explicit model control.

Its models double what they get. ``python -m tests.support.kserve_server`` says where it listens, and serves
until its process ends; ``broken`` is a model that cannot be loaded. A request with the parameter ``delay_s``
waits so long. ``GET /_stats`` tells what became of requests.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from tests.support.served_app import serve_app

SIZE_OF_JSON = "Inference-Header-Content-Length"
UNLOADED = "unloaded"
WHY_BROKEN = "failed to load 'broken': no weights"


class KServeServer:
    """What is loaded, and what was asked."""

    def __init__(self, loaded: tuple[str, ...] = ("double",), unloaded: tuple[str, ...] = ("spare",)) -> None:
        self._states: dict[str, tuple[str, str]] = dict.fromkeys(loaded, ("READY", ""))
        self._states |= dict.fromkeys((*unloaded, "broken"), ("UNAVAILABLE", UNLOADED))
        self.counts = {"infers": 0, "cancelled": 0, "loads": 0, "unloads": 0}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        model = "/v2/models/{model}"
        for base in (model, model + "/versions/{version}"):
            app.router.add_get(base, self._metadata)
            app.router.add_get(base + "/ready", self._ready)
            app.router.add_post(base + "/infer", self._infer)
        app.router.add_get("/v2/health/ready", self._healthy)
        app.router.add_post("/v2/repository/index", self._index)
        app.router.add_post("/v2/repository/models/{model}/{verb:load|unload}", self._move)
        app.router.add_get("/_stats", self._stats)
        return app

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _stats(self, request: web.Request) -> web.Response:
        return web.json_response(self.counts)

    async def _index(self, request: web.Request) -> web.Response:
        orjson.loads(await request.read())
        rows = self._states.items()
        return web.json_response(
            [
                {"name": name, "version": "1", "state": state, "reason": reason}
                for name, (state, reason) in rows
            ]
        )

    async def _move(self, request: web.Request) -> web.Response:
        model, verb = request.match_info["model"], request.match_info["verb"]
        self.counts[f"{verb}s"] += 1
        if model not in self._states:
            return _error(400, f"failed to {verb} '{model}', no such model")
        if model == "broken" and verb == "load":
            self._states[model] = ("UNAVAILABLE", WHY_BROKEN)
            return _error(400, WHY_BROKEN)
        self._states[model] = ("READY", "") if verb == "load" else ("UNAVAILABLE", UNLOADED)
        return web.Response()

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self._is_ready(request) else 400)

    async def _metadata(self, request: web.Request) -> web.Response:
        if not self._is_ready(request):
            return _unknown(request)
        tensor = {"datatype": "FP32", "shape": [2, 3]}
        return web.json_response(
            {
                "name": request.match_info["model"],
                "versions": ["1"],
                "platform": "stand-in",
                "inputs": [{"name": "x", **tensor}],
                "outputs": [{"name": "y", **tensor}],
            }
        )

    async def _infer(self, request: web.Request) -> web.Response:
        if not self._is_ready(request):
            return _unknown(request)
        self.counts["infers"] += 1
        body = await request.read()
        json_bytes = int(request.headers.get(SIZE_OF_JSON, len(body)))
        try:
            said, rest = orjson.loads(body[:json_bytes]), body[json_bytes:]
        except orjson.JSONDecodeError as error:
            return _error(400, f"failed to parse the request JSON buffer: {error}")
        try:
            await asyncio.sleep(said.get("parameters", {}).get("delay_s", 0))
        except asyncio.CancelledError:
            self.counts["cancelled"] += 1
            raise
        tensor = said["inputs"][0]
        size = tensor.get("parameters", {}).get("binary_data_size")
        output = {"name": "y", "datatype": tensor["datatype"], "shape": tensor["shape"]}
        answer: dict[str, Any] = {"model_name": request.match_info["model"], "model_version": "1"}
        if size is None:
            answer["outputs"] = [output | {"data": [2 * value for value in tensor["data"]]}]
            return web.json_response(answer)
        if size != len(rest):
            return _error(400, f"unexpected size for input 'x': {len(rest)} bytes of {size}")
        answer["outputs"] = [output | {"parameters": {"binary_data_size": 2 * size}}]
        begins = orjson.dumps(answer)
        headers = {SIZE_OF_JSON: str(len(begins)), "content-type": "application/octet-stream"}
        return web.Response(body=begins + rest + rest, headers=headers)

    def _is_ready(self, request: web.Request) -> bool:
        return self._states.get(request.match_info["model"], ("", ""))[0] == "READY"


def _unknown(request: web.Request) -> web.Response:
    model = request.match_info["model"]
    return _error(400, f"Request for unknown model: '{model}' is not found")


def _error(status: int, message: str) -> web.Response:
    said: Mapping[str, str] = {"error": message}
    return web.json_response(said, status=status)


async def main() -> None:
    await serve_app(KServeServer().app(), handler_cancellation=True)


if __name__ == "__main__":
    asyncio.run(main())
