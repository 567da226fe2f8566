"""A server that answers as ComfyUI does: its queue, history, files and ``/ws``, for a few nodes.

``python -m tests.support.comfyui_server [--cancels jobs|id|all] [--step-s S] [--no-ids]`` says where it
listens and serves until its process ends. ``--cancels`` is what its version can: cancel jobs by id, interrupt
a prompt by its id, or interrupt whatever runs. With ``--no-ids`` it names prompts itself, as old versions do.
``GET /_stats`` tells what became of prompts, and ``POST /_script`` makes sockets silent or ends them.

What it sends when was taken from ComfyUI's server.py, execution.py and progress.py.
"""

import argparse
import asyncio
import heapq
import io
import json
import struct
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiohttp import WSMsgType, web
from PIL import Image

from tests.support.comfyui_nodes import NODES, NodeFailed, NodeRun, check_prompt
from tests.support.served_app import serve_app


class Interrupted(Exception):
    """The prompt that runs is to end."""


class Execution:
    """One prompt while it runs."""

    def __init__(self, server: "ComfyUIServer", item: tuple[Any, ...]) -> None:
        self.server = server
        self.number, self.prompt_id, self.prompt, self.extra, self.outputs = item
        self.client_id = self.extra.get("client_id")
        self.states: dict[str, dict[str, Any]] = {}
        self.values: dict[str, Any] = {}
        self.ui: dict[str, Any] = {}
        self.messages: list[tuple[str, Any]] = []

    async def run(self) -> dict[str, Any]:
        """The record for the history."""
        server = self.server
        server.interrupted = False
        status = "error"
        await self._note("execution_start", {})
        await self._note("execution_cached", {"nodes": []})
        node = ""
        try:
            for node in self._order():
                if server.interrupted:
                    raise Interrupted
                await self._node(node)
            await self._note("execution_success", {})
            status = "success"
        except Interrupted:
            said = {"node_id": node, "node_type": self.prompt[node]["class_type"], "executed": []}
            await self._note("execution_interrupted", said, everybody=True)
            server.counts["interrupted"].append(self.prompt_id)
        except NodeFailed as error:
            said = {"node_id": node, "node_type": self.prompt[node]["class_type"], "executed": []}
            said |= {"exception_type": error.kind, "exception_message": str(error), "traceback": []}
            await self._note("execution_error", said)
        prompt = [self.number, self.prompt_id, self.prompt, self.extra, self.outputs]
        return {
            "prompt": prompt,
            "outputs": self.ui,
            "status": {"status_str": status, "completed": status == "success", "messages": self.messages},
            "meta": {},
        }

    def _order(self) -> list[str]:
        done: list[str] = []

        def add(node: str) -> None:
            for value in self.prompt[node].get("inputs", {}).values():
                if isinstance(value, list) and value[0] not in done:
                    add(value[0])
            if node not in done:
                done.append(node)

        for node in self.outputs:
            add(node)
        return done

    async def _node(self, node: str) -> None:
        said = {"node": node, "display_node": node, "prompt_id": self.prompt_id}
        self.server.last_node = node
        await self.server.send("executing", said, self.client_id)
        await self._state(node, 0, 1, "running")
        inputs = {
            name: self.values[value[0]] if isinstance(value, list) else value
            for name, value in self.prompt[node].get("inputs", {}).items()
        }
        run = NodeRun(self.server.directory, inputs, self._steps(node), self._preview, self._flood)
        self.values[node], ui = await NODES[self.prompt[node]["class_type"]].function(run)
        await asyncio.sleep(self.server.step_s)
        await self._state(node, 1, 1, "finished")
        if ui is not None:
            self.ui[node] = ui
            await self.server.send("executed", said | {"output": ui}, self.client_id)

    def _steps(self, node: str) -> Any:
        async def step(value: int, most: int) -> None:
            if self.server.interrupted:
                raise Interrupted
            said = {"value": value, "max": most, "prompt_id": self.prompt_id, "node": node}
            await self._state(node, value, most, "running")
            await self.server.send("progress", said, self.client_id)

        return step

    async def _state(self, node: str, value: int, most: int, state: str) -> None:
        names = dict.fromkeys(("node_id", "display_node_id", "real_node_id"), node)
        self.states[node] = {
            "value": value,
            "max": most,
            "state": state,
            "prompt_id": self.prompt_id,
            **names,
        }
        said = {"prompt_id": self.prompt_id, "nodes": self.states}
        await self.server.send("progress_state", said, self.client_id)

    async def _preview(self, picture: bytes) -> None:
        await self.server.send_bytes(struct.pack(">II", 1, 1) + picture, self.client_id)

    async def _flood(self, count: int) -> None:
        for value in range(count):
            said = {"value": value, "max": count, "prompt_id": self.prompt_id, "node": "1"}
            await self.server.send("progress", said, self.client_id)

    async def _note(self, event: str, data: Mapping[str, Any], *, everybody: bool = False) -> None:
        said = {"prompt_id": self.prompt_id, **data, "timestamp": 0}
        self.messages.append((event, said))
        await self.server.send(event, said, None if everybody else self.client_id)


class ComfyUIServer:
    """The queue, and everything clients ask. ``directory`` has ``input``, ``output`` and ``temp``."""

    def __init__(
        self, directory: Path, *, cancels: str = "jobs", step_s: float = 0.0, takes_ids: bool = True
    ) -> None:
        self.directory, self.cancels, self.step_s, self.takes_ids = directory, cancels, step_s, takes_ids
        for name in ("input", "output", "temp"):
            (directory / name).mkdir(exist_ok=True)
        self.sockets: dict[str, web.WebSocketResponse] = {}
        self.queue: list[tuple[Any, ...]] = []
        self.running: tuple[Any, ...] | None = None
        self.history: dict[str, Any] = {}
        self.interrupted = False
        self.last_node: str | None = None
        self.silent = False
        self.number = 0
        self.changed = asyncio.Event()
        self.counts: dict[str, Any] = {
            "interrupted": [],
            "deleted": [],
            "done": 0,
            "deepest": 0,
            "sockets": 0,
        }

    def app(self) -> web.Application:
        app = web.Application(client_max_size=100 << 20)
        for prefix in ("", "/api"):
            app.router.add_get(prefix + "/ws", self._ws)
            app.router.add_get(prefix + "/prompt", self._queue_info)
            app.router.add_post(prefix + "/prompt", self._prompt)
            app.router.add_get(prefix + "/queue", self._queue)
            app.router.add_post(prefix + "/queue", self._change_queue)
            app.router.add_get(prefix + "/history/{id}", self._history)
            app.router.add_get(prefix + "/view", self._view)
            app.router.add_post(prefix + "/upload/image", self._upload)
            app.router.add_post(prefix + "/interrupt", self._interrupt)
            app.router.add_get(prefix + "/object_info", self._object_info)
            app.router.add_get(prefix + "/object_info/{node}", self._object_info)
            app.router.add_get(prefix + "/models/checkpoints", self._checkpoints)
            app.router.add_get(prefix + "/system_stats", self._system_stats)
        if self.cancels == "jobs":
            app.router.add_post("/api/jobs/{id}/cancel", self._cancel_job)
        app.router.add_get("/_stats", self._stats)
        app.router.add_post("/_script", self._script)
        app.on_startup.append(self._start)
        app.on_cleanup.append(self._stop)
        return app

    async def _start(self, app: web.Application) -> None:
        self._worker = asyncio.create_task(self._work())

    async def _stop(self, app: web.Application) -> None:
        self._worker.cancel()

    async def _work(self) -> None:
        while True:
            while not self.queue:
                self.changed.clear()
                await self.changed.wait()
            item = self.running = heapq.heappop(self.queue)
            await self._tell_status()
            execution = Execution(self, item)
            record = await execution.run()
            self.running, self.history[item[1]] = None, record
            self.last_node = None
            self.counts["done"] += 1
            await self._tell_status()
            said = {"node": None, "prompt_id": item[1]}
            await self.send("executing", said, execution.client_id)

    # --- sockets

    async def send(self, event: str, data: Any, sid: str | None = None) -> None:
        await self._send(json.dumps({"type": event, "data": data}), sid)

    async def send_bytes(self, message: bytes, sid: str | None) -> None:
        await self._send(message, sid)

    async def _send(self, message: str | bytes, sid: str | None) -> None:
        named = [self.sockets[sid]] if sid in self.sockets else []
        sockets = [*self.sockets.values()] if sid is None else named
        for socket in () if self.silent else sockets:
            try:
                await (socket.send_str(message) if isinstance(message, str) else socket.send_bytes(message))
            except ConnectionError:
                continue

    async def _tell_status(self) -> None:
        await self.send("status", {"status": self._info()})

    def _info(self) -> dict[str, Any]:
        return {"exec_info": {"queue_remaining": len(self.queue) + (self.running is not None)}}

    async def _ws(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        sid = request.query.get("clientId") or uuid.uuid4().hex
        self.sockets.pop(sid, None)
        self.sockets[sid] = socket
        self.counts["sockets"] += 1
        try:
            await self.send("status", {"status": self._info(), "sid": sid}, sid)
            async for message in socket:
                if message.type == WSMsgType.ERROR:
                    break
        finally:
            self.sockets.pop(sid, None)  # as ComfyUI does: also where a newer one has taken the place
        return socket

    # --- prompts

    async def _prompt(self, request: web.Request) -> web.Response:
        said = await request.json()
        if "prompt" not in said:
            error = {"type": "no_prompt", "message": "No prompt provided", "details": "", "extra_info": {}}
            return web.json_response({"error": error, "node_errors": {}}, status=400)
        number, self.number = self.number, self.number + 1
        prompt_id = str(said.get("prompt_id", uuid.uuid4())) if self.takes_ids else str(uuid.uuid4())
        failure, node_errors, outputs = check_prompt(said["prompt"], self.directory)
        if failure is not None:
            return web.json_response({"error": failure, "node_errors": node_errors}, status=400)
        extra = dict(said.get("extra_data", {}))
        if "client_id" in said:
            extra["client_id"] = said["client_id"]
        heapq.heappush(self.queue, (number, prompt_id, said["prompt"], extra, outputs))
        self.counts["deepest"] = max(self.counts["deepest"], len(self.queue) + (self.running is not None))
        self.changed.set()
        await self._tell_status()
        return web.json_response({"prompt_id": prompt_id, "number": number, "node_errors": node_errors})

    async def _queue_info(self, request: web.Request) -> web.Response:
        return web.json_response(self._info())

    async def _queue(self, request: web.Request) -> web.Response:
        running = [] if self.running is None else [self.running]
        return web.json_response({"queue_running": running, "queue_pending": self.queue})

    async def _change_queue(self, request: web.Request) -> web.Response:
        for prompt_id in (await request.json()).get("delete", ()):
            self._delete(prompt_id)
        return web.Response()

    def _delete(self, prompt_id: str) -> None:
        kept = [item for item in self.queue if item[1] != prompt_id]
        if len(kept) < len(self.queue):
            self.counts["deleted"].append(prompt_id)
        self.queue = kept
        heapq.heapify(self.queue)

    async def _interrupt(self, request: web.Request) -> web.Response:
        text = await request.text()
        prompt_id = json.loads(text).get("prompt_id") if text and self.cancels != "all" else None
        if prompt_id is None or (self.running is not None and self.running[1] == prompt_id):
            self.interrupted = True
        return web.Response()

    async def _cancel_job(self, request: web.Request) -> web.Response:
        prompt_id = request.match_info["id"]
        self._delete(prompt_id)
        if self.running is not None and self.running[1] == prompt_id:
            self.interrupted = True
        return web.json_response({"status": "ok"})

    async def _history(self, request: web.Request) -> web.Response:
        prompt_id = request.match_info["id"]
        found = {prompt_id: self.history[prompt_id]} if prompt_id in self.history else {}
        return web.json_response(found)

    # --- files and facts

    async def _view(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        path = self.directory / query.get("type", "output") / query.get("subfolder", "") / query["filename"]
        if not path.is_file():
            return web.Response(status=404)
        return web.FileResponse(path, headers={"Content-Disposition": f'filename="{path.name}"'})

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        image, kind, subfolder = form["image"], str(form.get("type", "input")), str(form.get("subfolder", ""))
        assert isinstance(image, web.FileField)
        directory = self.directory / kind / subfolder
        directory.mkdir(parents=True, exist_ok=True)
        (directory / image.filename).write_bytes(image.file.read())
        return web.json_response({"name": image.filename, "subfolder": subfolder, "type": kind})

    async def _object_info(self, request: web.Request) -> web.Response:
        wanted = request.match_info.get("node")
        found = {name: node.info(name) for name, node in NODES.items() if wanted in (None, name)}
        return web.json_response(found)

    async def _checkpoints(self, request: web.Request) -> web.Response:
        return web.json_response(["tiny.safetensors", "with blanks.safetensors"])

    async def _system_stats(self, request: web.Request) -> web.Response:
        return web.json_response({"system": {"comfyui_version": "0.0.0-stand-in"}, "devices": []})

    async def _stats(self, request: web.Request) -> web.Response:
        return web.json_response(self.counts | {"running": self.running and self.running[1]})

    async def _script(self, request: web.Request) -> web.Response:
        said = await request.json()
        self.silent = bool(said.get("silent", self.silent))
        if said.get("end_sockets"):
            for socket in tuple(self.sockets.values()):
                await socket.close()
        return web.json_response({})


def picture(width: int = 8, height: int = 8, color: int = 0, form: str = "PNG") -> bytes:
    """A picture of one colour."""
    written = io.BytesIO()
    Image.new("RGB", (width, height), (color >> 16 & 255, color >> 8 & 255, color & 255)).save(written, form)
    return written.getvalue()


async def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cancels", default="jobs", choices=("jobs", "id", "all"))
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--no-ids", action="store_true")
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as directory:
        server = ComfyUIServer(
            Path(directory), cancels=given.cancels, step_s=given.step_s, takes_ids=not given.no_ids
        )
        await serve_app(server.app())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
