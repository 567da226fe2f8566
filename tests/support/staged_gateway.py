"""A gateway for the dashboard that is only a stage: real files and headers, and answers that a test writes.

For what no small real fleet shows: a thousand deployments, hostile names, streams that break off.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.api.ui.files import HEADERS, read_files

Json = dict[str, Any]
KEY = "sk-tl-staged"


class StagedGateway:
    """``async with StagedGateway(snapshot) as stage: page.goto(stage.url)``; :data:`KEY` signs in."""

    def __init__(
        self,
        snapshot: Json,
        answers: Mapping[str, Json] | None = None,
        role: str = "admin",
        port: int = 0,
        below: str = "",
    ) -> None:
        """``answers`` are those of further paths, by path; ``port`` 0 is any; ``below`` is the path that a
        proxy would have the gateway at."""
        self._port = port
        self._below = below
        self.snapshot = snapshot
        self.role = role
        self.epoch = "a1"
        self.answers: dict[str, Json] = {
            "/admin/agents": {"agents": []},
            "/admin/aliases": {"aliases": []},
            **(answers or {}),
        }
        self.refused: dict[str, tuple[int, str]] = {}
        """Paths that answer with this status and message."""
        self.held: dict[str, asyncio.Event] = {}
        """Paths that answer once this is set."""
        self.told: dict[str, list[tuple[str, Json]]] = {}
        """Paths that answer a POST with these events."""
        self.acts: list[tuple[str, str, Any]] = []
        """Method, path and body of everything that was to change something."""
        self.last_ids: list[str | None] = []
        """What each stream was asked to go on from."""
        self._streams: set[asyncio.Queue[bytes | None]] = set()
        self._number = 0
        self._files = read_files()

    async def __aenter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}{self._below}"
        routes = [
            Route("/ui/{file:path}", self._file),
            Route("/admin/events", self._events),
            Route("/{path:path}", self._answer, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ]
        self._app = Starlette(routes=routes)
        config = uvicorn.Config(self._receive, interface="asgi3", lifespan="off", log_config=None, ws="none")
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server._serve([self._listener]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.should_exit = self._server.force_exit = True
        await self._serving

    # --- What a test does ---

    def delta(self, **patch: Any) -> None:
        """Send what has changed to every page."""
        self._say("delta", patch)

    def cut(self) -> None:
        """End every stream."""
        for stream in self._streams:
            stream.put_nowait(None)

    @property
    def streams(self) -> int:
        return len(self._streams)

    # --- What it answers ---

    def _say(self, event: str, data: Json) -> None:
        for stream in self._streams:
            stream.put_nowait(self._frame(event, data))

    def _frame(self, event: str, data: Json) -> bytes:
        self._number += 1
        return b"id: %s-%d\nevent: %s\ndata: %s\n\n" % (
            self.epoch.encode(),
            self._number,
            event.encode(),
            orjson.dumps(data),
        )

    async def _receive(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As a proxy passes it on."""
        await self._app({**scope, "path": scope["path"].removeprefix(self._below)}, receive, send)

    async def _file(self, request: Request) -> Response:
        found = self._files.get(request.path_params["file"] or "index.html")
        if found is None:
            return _problem(404, "There is nothing here.")
        headers = {name.decode(): value.decode() for name, value in HEADERS}
        return Response(found.body, headers={**headers, "content-type": found.content_type.decode()})

    async def _events(self, request: Request) -> Response:
        problem = self._refusal(request)
        if problem is not None:
            return problem
        self.last_ids.append(request.headers.get("last-event-id"))
        if (held := self.held.get(request.url.path)) is not None:
            await held.wait()
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        stream.put_nowait(self._frame("snapshot", self.snapshot))
        self._streams.add(stream)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                while (piece := await stream.get()) is not None:
                    yield piece
            finally:
                self._streams.discard(stream)

        return StreamingResponse(pieces(), media_type="text/event-stream")

    async def _answer(self, request: Request) -> Response:
        if (held := self.held.get(request.url.path)) is not None:
            await held.wait()
        problem = self._refusal(request)
        if problem is not None:
            return problem
        path = request.url.path
        if request.method != "GET":
            body = await request.body()
            self.acts.append((request.method, path, orjson.loads(body) if body else None))
            if path in self.told:
                told = b"".join(self._frame(event, data) for event, data in self.told[path])
                return Response(told, media_type="text/event-stream")
        if path == "/admin/self":
            key = {"id": "k", "name": "staged", "tenant": "ops", "role": self.role}
            process = {"process": "gateway", "host": "stage", "version": "1.2.3", "state": "serving"}
            return JSONResponse({"key": key, "gateway": process})
        if path == "/metrics":
            return Response(b"", media_type="text/plain")
        found = self.answers.get(path)
        return _problem(404, f"There is nothing at {path}.") if found is None else JSONResponse(found)

    def _refusal(self, request: Request) -> Response | None:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return _problem(401, "This gateway knows no such key.")
        refused = self.refused.get(request.url.path)
        return None if refused is None else _problem(*refused)


def _problem(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": "staged"}}, status)


def fleet(hosts: int, each: int = 1, *, load: float = 0.5) -> Json:
    """A snapshot of so many hosts with so many deployments each, in states of all kinds."""
    agents, deployments, models = dict[str, Json](), dict[str, Json](), dict[str, Json]()
    names = ("llama-3.1-70b", "qwen-2.5-32b", "mistral-small", "whisper-large")
    for number in range(hosts):
        name, share = f"gpu-{number:03}", (number * 37 % 101) / 100
        status = "away" if number % 41 == 17 else "ready"
        gpus = {
            str(index): {
                "name": "NVIDIA H100 80GB",
                "memory_total_bytes": 85899345920,
                "memory_used_bytes": int(85899345920 * (0.3 + 0.6 * share)),
                "utilisation": min(1.0, share * load * 2),
                "temperature_c": 40 + 40 * share,
            }
            for index in range(each)
        }
        agents[name] = {
            "status": status,
            "draining": number % 23 == 7,
            "rtt_s": 0.002 + share / 50,
            "streams": int(8 * share),
            "labels": {"region": "eu" if number % 2 else "us"},
            "gpus": gpus if status == "ready" else {},
        }
        if status == "away":
            continue
        for index in range(each):
            model = names[(number + index) % len(names)]
            state = "failed" if (number + index) % 53 == 11 else "loading" if number % 29 == 3 else "loaded"
            deployments[f"{name}/vllm-{index}/{model}"] = {
                **{"agent": name, "model": model, "version": "", "kind": "vllm", "status": state},
                **{
                    "usable": state == "loaded",
                    "health": 1,
                    "slots": 8,
                    "in_flight": int(8 * share * load * 2),
                },
                **{"running": int(8 * share), "waiting": 0, "utilisation": min(1.0, share * load * 2)},
                **{"temperature_c": 40 + 40 * share, "reason": "out of memory" if state == "failed" else ""},
            }
    for model in names:
        serving = [one for one in deployments.values() if one["model"] == model and one["usable"]]
        models[model] = {
            **{"waiting": 12 if load > 0.9 else 0, "oldest_s": 14.0 if load > 0.9 else 0, "tiers": {}},
            **{"slots": 8 * len(serving), "in_flight": sum(one["in_flight"] for one in serving)},
            "deployments": len(serving),
        }
    running = sum(one["in_flight"] for one in deployments.values())
    totals = {"running": running, "waiting": sum(one["waiting"] for one in models.values())}
    return {
        **{"at": 1790000000.0, "process": "gateway", "processes": {"gateway": {"up": True}}},
        **{"agents": agents, "deployments": deployments, "models": models, "troubles": {}},
        "totals": totals | {"begun": 100, "ended": 90, "failed": 1},
        **{"requests": [], "changes": []},
    }
