"""Prompts run one at a time at a server, and a cancelled one is gone before the next is sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from agent.engines.backend import BackendFailed, WholeBody
from agent.engines.comfyui.backend import ComfyUIBackend
from agent.engines.settings import EngineSettings
from shared.protocol.messages import DeploymentStatus, Headers, RequestHead
from shared.protocol.progress import Progress
from tests.support.comfyui_server import ComfyUIServer

ROOM = 1_000_000
SAVE = {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}}
EMPTY = {"class_type": "EmptyImage", "inputs": {"width": 4, "height": 4, "batch_size": 1, "color": 0}}


def steps(count: int = 3, step_s: float = 0.0) -> dict[str, Any]:
    inputs = {"image": ["1", 0], "steps": count, "step_s": step_s}
    return {"1": EMPTY, "2": {"class_type": "Steps", "inputs": inputs}, "3": SAVE}


class Receiver:
    """Keeps an answer; takes no more of it than ``room`` pieces until it is told to."""

    tells_progress = True

    def __init__(self, room: int = ROOM) -> None:
        self.status, self.headers, self.body = 0, dict[str, str](), bytearray()
        self.progress: list[Progress] = []
        self.room = room
        self.over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> None:
        self.status, self.headers = status, dict(headers)

    def on_body(self, piece: bytes) -> bool:
        self.body += piece
        self.room -= 1
        return self.room > 0

    def on_progress(self, progress: Progress) -> None:
        self.progress.append(progress)

    def on_over(self, error: Exception | None) -> None:
        self.over.set_result(error)


@asynccontextmanager
async def engine(directory: Path, **settings: Any) -> AsyncIterator[tuple[ComfyUIServer, ComfyUIBackend]]:
    server = ComfyUIServer(directory, **settings)
    runner = web.AppRunner(server.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    backend = ComfyUIBackend(EngineSettings(url=f"http://127.0.0.1:{runner.addresses[0][1]}", name="c"))
    await backend.start()
    try:
        yield server, backend
    finally:
        await backend.close()
        await runner.cleanup()


def ask(
    backend: ComfyUIBackend, prompt: Any, room: int = 1_000_000, accept: str = ""
) -> tuple[Any, Receiver]:
    body = orjson.dumps({"workflow": prompt})
    fields = (("content-length", str(len(body))), ("accept", accept))
    head = RequestHead("c/comfyui", "POST", "/v1/workflows/comfyui", fields, "comfyui", "r1")
    receiver = Receiver(room)
    return backend.request(head, WholeBody(body), receiver), receiver


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  the server has no event for everything
            await asyncio.sleep(0.005)


async def test_the_server_is_offered_with_one_slot_for_all_its_models(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, backend):
        states = {state.model: state for state in backend.deployments()}
        assert set(states) == {"c", "comfyui", "tiny.safetensors"}
        state = states["comfyui"]
        assert (state.kind, state.slots, state.routes, state.upgrades) == (
            "comfyui",
            1,
            ("workflows",),
            False,
        )
        assert state.status is DeploymentStatus.LOADED


async def test_a_prompt_tells_its_progress_and_ends_with_its_file(tmp_path: Path) -> None:
    async with engine(tmp_path) as (server, backend):
        _, receiver = ask(backend, steps())
        assert await receiver.over is None
        assert (receiver.status, receiver.headers["content-type"]) == (200, "image/png")
        assert receiver.body.startswith(b"\x89PNG")
        assert receiver.progress[-1].fraction == 1.0
        (record,) = server.history.values()
        assert record["prompt"][3]["trunkline_request"] == "r1"


@pytest.mark.parametrize("path", ["/v1/workflows/comfyui", "/prompt"])
async def test_a_prompt_that_is_nested_too_deeply_is_refused(tmp_path: Path, path: str) -> None:
    prompt = b'{"1":{"class_type":"EmptyImage","inputs":{"a":%b}}}' % (b"[" * 300 + b"]" * 300)
    body = b'{"%b":%b}' % (b"prompt" if path == "/prompt" else b"workflow", prompt)
    async with engine(tmp_path) as (server, backend):
        receiver = Receiver()
        backend.request(RequestHead("c/comfyui", "POST", path, (), "comfyui", "r"), WholeBody(body), receiver)
        assert await receiver.over is None
        assert (receiver.status, orjson.loads(receiver.body)["error"]["code"]) == (400, "invalid_workflow")
        assert not server.history


async def test_a_reader_that_pauses_holds_the_answer_back(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, backend):
        call, receiver = ask(backend, steps(), room=1, accept="application/json")
        await until(lambda: receiver.room == 0)
        assert not receiver.over.done()
        receiver.room = ROOM
        call.resume()
        assert await receiver.over is None
        assert orjson.loads(receiver.body)["outputs"][0]["type"] == "image/png"


@pytest.mark.parametrize("cancels", ["jobs", "id", "all"])
async def test_the_next_prompt_is_sent_when_the_cancelled_one_is_gone(tmp_path: Path, cancels: str) -> None:
    async with engine(tmp_path, cancels=cancels) as (server, backend):
        call, first = ask(backend, steps(1000, 0.01))
        await until(lambda: server.running)
        assert server.running is not None
        cancelled = server.running[1]
        _, second = ask(backend, steps())
        call.let_go()
        assert await second.over is None
        assert second.status == 200
        assert not first.over.done()
        assert server.counts["interrupted"] == [cancelled]
        assert server.counts["deepest"] == 1


async def test_a_prompt_behind_those_of_others_says_so_and_leaves_them_alone(tmp_path: Path) -> None:
    async with engine(tmp_path) as (server, backend):
        await backend._server.submit(steps(1000, 0.01), "theirs", "someone", {}, None)
        await until(lambda: server.running)
        call, receiver = ask(backend, steps())
        await until(lambda: any("before it" in told.text for told in receiver.progress))
        assert max(state.waiting for state in backend.deployments()) == 1
        call.let_go()
        await until(lambda: not server.queue)
        assert (server.running or [0, ""])[1] == "theirs"
        assert server.counts["interrupted"] == []
        await backend._server.cancel("theirs")


async def test_a_prompt_that_somebody_deletes_fails(tmp_path: Path) -> None:
    async with engine(tmp_path) as (server, backend):
        await backend._server.submit(steps(1000, 0.01), "theirs", "someone", {}, None)
        _, receiver = ask(backend, steps())
        await until(lambda: server.queue)
        server._delete(server.queue[0][1])
        error = await receiver.over
        assert isinstance(error, BackendFailed)
        assert "deleted" in error.reason
        await backend._server.cancel("theirs")


async def test_a_prompt_whose_socket_tells_nothing_ends_by_the_history(tmp_path: Path) -> None:
    async with engine(tmp_path) as (server, backend):
        server.silent = True
        _, receiver = ask(backend, steps())
        assert await receiver.over is None
        assert receiver.status == 200
        server.silent = False
        await until(lambda: server.counts["sockets"] == 2)


async def test_a_lost_reply_to_a_prompt_is_looked_up(tmp_path: Path) -> None:
    async with engine(tmp_path) as (server, _):
        taken = ComfyUIServer._prompt

        async def lose(request: web.Request) -> web.Response:
            await taken(server, request)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        server._prompt = lose  # type: ignore[method-assign]
        async with engine_with(server) as url:
            other = ComfyUIBackend(EngineSettings(url=url, name="d"))
            await other.start()
            _, receiver = ask(other, steps())
            assert await receiver.over is None
            assert receiver.status == 200
            await other.close()


@asynccontextmanager
async def engine_with(server: ComfyUIServer) -> AsyncIterator[str]:
    """The same server at one more address."""
    runner = web.AppRunner(server.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
