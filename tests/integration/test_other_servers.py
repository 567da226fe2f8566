"""Ray Serve, BentoML and LitServe behind an agent, by declaration: what passes through to them.

Each runs in an environment of its own below ``tests/.cache``, which ``tests/run engines`` makes. All serve
one application, so that what differs is the server.
"""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import venv
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import connect

from shared.process.ports import free_port
from tests.bench.peers.machine import family
from tests.support.processes import Gateway, House, fetch, until

pytestmark = pytest.mark.engine

CACHE = Path(__file__).parents[1] / ".cache"
INSTALL_S = 900
START_S = 180.0
MODEL = "application"

APPLICATION = """
import asyncio, hashlib
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute

seen = {"ended": 0, "running": 0}


async def double(request):
    body = await request.json()
    return JSONResponse({"y": [2 * x for x in body["x"]]})


async def backwards(request):
    return Response((await request.body())[::-1], media_type="application/octet-stream")


async def form(request):
    data = await request.body()
    kind = request.headers["content-type"].partition(";")[0]
    return JSONResponse({"type": kind, "digest": hashlib.sha256(data).hexdigest()})


def events(count, pause_s):
    async def each():
        seen["running"] += 1
        try:
            for number in range(count):
                yield f"data: {number}\\n\\n"
                await asyncio.sleep(pause_s)
        finally:
            seen["running"] -= 1
            seen["ended"] += 1
    return StreamingResponse(each(), media_type="text/event-stream")


async def count(request):
    return events(5, 0.05)


async def endless(request):
    return events(600, 0.1)


async def stats(request):
    return JSONResponse(seen)


async def echo(socket):
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


routes = [Route(f"/{each.__name__}", each, methods=["GET", "POST"])
          for each in (double, backwards, form, count, endless, stats)]
app = Starlette(routes=[*routes, WebSocketRoute("/echo", echo)])
"""

RAY = """
import sys, time
import ray
from ray import serve
from application import app


@serve.deployment
@serve.ingress(app)
class Application:
    pass


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(Application.bind())
while True:
    time.sleep(1)
"""

BENTO = """
import bentoml
from application import app


@bentoml.asgi_app(app, path="/app")
@bentoml.service(workers=1)
class Application:
    @bentoml.api
    def double(self, x: list[int]) -> list[int]:
        return [2 * each for each in x]
"""

LIT = """
import sys
import litserve
from application import app


class Doubled(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["x"]

    def predict(self, x):
        return [2 * each for each in x]

    def encode_response(self, output):
        return {"y": output}


if __name__ == "__main__":
    server = litserve.LitServer(Doubled(), accelerator="cpu", workers_per_device=1)
    server.app.mount("/app", app)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """A server: its packages, how it is started, and where its application is."""

    home: str
    packages: tuple[str, ...]
    module: str
    program: str
    command: tuple[str, ...]
    """After the interpreter; ``PORT`` is replaced."""
    health: str
    prefix: str = "/app"
    own_call: tuple[str, str] | None = None
    """The path of the server's own interface, and the member of its answer."""


_BENTO = ("-m", "bentoml", "serve", "program:Application", "--host", "127.0.0.1", "--port", "PORT")
_PROGRAM = ("program.py", "PORT")
KINDS = {
    "ray": Kind("engines/rayserve", ("ray[serve]",), "ray.serve", RAY, _PROGRAM, "/-/healthz", ""),
    "bentoml": Kind(
        "engines/bentoml", ("bentoml",), "bentoml", BENTO, _BENTO, "/livez", own_call=("/double", "")
    ),
    "litserve": Kind(
        "peers/litserve",
        ("litserve", "numpy"),
        "litserve",
        LIT,
        _PROGRAM,
        "/health",
        own_call=("/predict", "y"),
    ),
}


@dataclass(frozen=True, slots=True)
class Served:
    kind: Kind
    url: str
    gateway: Gateway
    key: str
    kill: Callable[[], None]

    @property
    def path(self) -> str:
        return f"/engines/{MODEL}{self.kind.prefix}"

    def seen(self) -> dict[str, int]:
        """What the application says of its streams, asked directly."""
        return dict(fetch(f"{self.url}{self.kind.prefix}/stats"))


def _python(kind: Kind) -> Path:
    """The interpreter of an environment that has the server; skips where there is none."""
    place = CACHE / kind.home
    python = place / "bin" / "python"
    if not python.exists():
        if os.environ.get("TRUNKLINE_TEST_ENGINES") != "full":
            pytest.skip("tests/run engines installs it")
        venv.create(place, with_pip=True)
    if subprocess.run([python, "-c", f"import {kind.module}"], capture_output=True).returncode:
        done = subprocess.run([python, "-m", "pip", "install", "-q", *kind.packages], timeout=INSTALL_S)
        if done.returncode:
            pytest.skip("it cannot be installed here")
    return python


def _answers(url: str) -> bool:
    try:
        fetch(url, timeout_s=5.0)
    except (OSError, ValueError):
        return False
    return True


@pytest.fixture(scope="module", params=[*KINDS])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    kind = KINDS[request.param]
    python = _python(kind)
    directory = tmp_path_factory.mktemp(request.param)
    (directory / "application.py").write_text(APPLICATION)
    (directory / "program.py").write_text(kind.program)
    port = free_port()
    command = [str(python), *(str(port) if word == "PORT" else word for word in kind.command)]
    environment = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "HOME": str(directory),
        "PYTHONPATH": str(directory),
        "RAY_USAGE_STATS_ENABLED": "0",
        "BENTOML_DO_NOT_TRACK": "1",
    }
    url = f"http://127.0.0.1:{port}"
    settings = directory / "agent.toml"
    settings.write_text(
        f"[[engine]]\nurl = '{url}'\nmodels = ['{MODEL}']\nhealth = '{kind.health}'\nstateful = false\n"
        "refresh_s = 0.5\n"
    )
    with (directory / "server.log").open("w") as log, House(directory / "house") as house:
        child = subprocess.Popen(
            command, env=environment, cwd=directory, stdout=log, stderr=log, start_new_session=True
        )
        try:
            until("the server answers", lambda: _answers(f"{url}{kind.prefix}/stats"), START_S)
            gateway = house.gateway()
            key = gateway.key("tests")
            house.agent(gateway, None, "--config", str(settings))
            house.wait_for_model(gateway, key, MODEL)
            yield Served(kind, url, gateway, key, lambda: _kill(child))
        finally:
            _kill(child)


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """The server, and whatever it has started in sessions of their own, as Ray does."""
    left = family(child.pid)
    for pid in (child.pid, *left):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.wait()


async def _post(served: Served, path: str, **body: Any) -> bytes:
    headers = {"authorization": f"Bearer {served.key}"}
    async with (
        aiohttp.ClientSession(served.gateway.url, headers=headers) as session,
        session.post(path, **body) as response,
    ):
        assert response.status == 200, await response.text()
        return await response.read()


async def test_calls_and_bodies_pass_unchanged(served: Served) -> None:
    assert json.loads(await _post(served, f"{served.path}/double", json={"x": [1, 2]})) == {"y": [2, 4]}
    data = bytes(range(256)) * 4_000
    assert await _post(served, f"{served.path}/backwards", data=data) == data[::-1]
    kind = {"content-type": "multipart/form-data; boundary=b"}
    told = json.loads(await _post(served, f"{served.path}/form", data=data, headers=kind))
    assert told == {"type": "multipart/form-data", "digest": hashlib.sha256(data).hexdigest()}


async def test_the_servers_own_interface_works(served: Served) -> None:
    if served.kind.own_call is None:
        pytest.skip("its application is its interface")
    path, member = served.kind.own_call
    answer = json.loads(await _post(served, f"/engines/{MODEL}{path}", json={"x": [3]}))
    assert (answer[member] if member else answer) == [6]


async def test_a_stream_comes_event_by_event(served: Served) -> None:
    data = await _post(served, f"{served.path}/count", data=b"")
    assert data == b"".join(b"data: %d\n\n" % number for number in range(5))


async def test_a_websocket_echoes(served: Served) -> None:
    async with connect(
        served.gateway.url.replace("http", "ws", 1) + f"{served.path}/echo",
        additional_headers={"authorization": f"Bearer {served.key}"},
        proxy=None,
    ) as socket:
        for number in range(20):
            await socket.send(f"{number} " * number)
            assert await socket.recv() == f"{number} " * number


@asynccontextmanager
async def _stream(served: Served) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream that has begun and does not end."""
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {served.key}"}) as session,
        session.post(f"{served.gateway.url}{served.path}/endless") as response,
    ):
        assert (await response.content.readline()).startswith(b"data: 0")
        yield response


async def test_a_client_that_leaves_ends_its_stream_at_the_server(served: Served) -> None:
    before = await asyncio.to_thread(served.seen)
    async with _stream(served) as response:
        assert (await asyncio.to_thread(served.seen))["running"] == before["running"] + 1
        response.close()
    ended = before["ended"] + 1
    await asyncio.to_thread(until, "the stream has ended", lambda: served.seen()["ended"] == ended, 20.0)


async def test_a_server_that_is_killed_midway_ends_its_streams_and_is_not_offered(served: Served) -> None:
    rest = b"broken off"
    async with _stream(served) as response:
        await asyncio.to_thread(served.kill)
        with suppress(aiohttp.ClientError):
            async with asyncio.timeout(30):
                rest = await response.read()
    assert rest == b"broken off" or b"error" in rest, "it must not look whole"
    await asyncio.to_thread(until, "it is lost", lambda: not _answers_through(served), 30.0)


def _answers_through(served: Served) -> bool:
    path = f"/engines/{MODEL}{served.kind.prefix}/stats"
    try:
        fetch(f"{served.gateway.url}{path}", key=served.key, timeout_s=20.0)
    except OSError:
        return False
    return True
