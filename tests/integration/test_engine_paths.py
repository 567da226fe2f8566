"""Engines' own paths through a real gateway and agent: who may manage engines, and where answers lead."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import pytest

from gateway.domain.quotas import Rates
from gateway.domain.scopes import AdminRole, limited
from gateway.storage import Store
from tests.support.processes import Gateway, House
from tests.support.threaded_server import served_in_thread

MODEL = "llama"


@dataclass
class Engine:
    """In Ollama's manner. It redirects as Starlette does, and elsewhere as one that was taken over may."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    stolen: list[str] = field(default_factory=list)
    """What came to the place elsewhere."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, engine: Engine, *arguments: Any) -> None:
        self.engine = engine
        super().__init__(*arguments)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        host = self.headers["host"]
        if self.path == "/v1/models":
            self.say(200, {"data": [{"id": MODEL, "owned_by": "library"}]})
            return
        if self.path == "/steal":
            self.engine.stolen.append(str(self.headers.get("authorization")))
        self.engine.asked.append(f"{self.command} {self.path}")
        if self.path == "/docs":
            self.say(307, {}, location=f"http://{host}/docs/")
        elif self.path == "/api/generate":
            lines = [{"response": "a", "done": False}] * 3
            lines.append({"done": True, "prompt_eval_count": 26, "eval_count": 290})
            data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
            self.say(200, data, **{"content-type": "application/x-ndjson"})
        elif self.path == "/api/silent":
            self.say(200, {"text": "x" * 989})
        elif self.path in ("/away", "/v1/chat/completions"):
            self.say(307, {}, location=f"http://localhost:{host.rpartition(':')[2]}/steal")
        else:
            self.say(200, {"path": self.path})

    do_GET = do_DELETE = do_POST  # noqa: N815 - the names it calls

    def say(self, status: int, body: dict[str, Any] | bytes, **fields: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        fields = {"content-type": "application/json", **fields, "content-length": str(len(data))}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine()
    with served_in_thread(ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, engine))) as engine.url:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with House(tmp_path_factory.mktemp("engine-paths")) as house:
        gateway = house.gateway()
        house.agent(gateway, engine.url)
        house.wait_for_model(gateway, gateway.key("waiting"), MODEL)
        yield gateway


def session(gateway: Gateway, name: str, role: AdminRole | None = None, **more: Any) -> aiohttp.ClientSession:
    with Store.open(gateway.state) as store:
        key = store.keys.create(name, "default", time.time(), role=role, **more)
    return aiohttp.ClientSession(gateway.url, headers={"authorization": f"Bearer {key}"})


async def test_a_plain_key_does_not_manage_an_engine_and_an_operators_does(
    gateway: Gateway, engine: Engine
) -> None:
    path = f"/engines/{MODEL}/api/delete"
    async with session(gateway, "plain") as plain, session(gateway, "boss", AdminRole.OPERATOR) as operator:
        for written in (path, path.upper().replace("ENGINES/LLAMA", "engines/llama"), f"{path}/"):
            async with plain.delete(written, json={"model": "other"}) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (403, "role_required")
        assert not [each for each in engine.asked if "delete" in each.lower()]
        async with operator.delete(path, json={"model": "other"}) as response:
            assert (response.status, engine.asked[-1]) == (200, "DELETE /api/delete")
        async with plain.post(f"/engines/{MODEL}/api/show", json={}) as response:
            assert (response.status, engine.asked[-1]) == (200, "POST /api/show")


async def test_a_client_that_follows_redirects_stays_with_its_engine(
    gateway: Gateway, engine: Engine
) -> None:
    async with session(gateway, "follower") as client:
        async with client.post(f"/engines/{MODEL}/docs", json={}) as response:
            assert (response.status, (await response.json())["path"]) == (200, "/docs/")
            assert response.url.path == f"/engines/{MODEL}/docs/"
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "a secret"}]}
        for path in (f"/engines/{MODEL}/away", "/v1/chat/completions"):
            async with client.post(path, json=asked) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (502, "engine_redirect")
    assert not engine.stolen


async def left(client: aiohttp.ClientSession, tokens: int) -> None:
    """Wait until the key has so many tokens left: what an answer took is settled just after its end."""
    told = -1
    for _ in range(100):
        async with client.get(f"/engines/{MODEL}/api/tags") as response:
            told = int(response.headers["x-ratelimit-remaining-tokens"])
        if told == tokens:
            return
    assert told == tokens


async def test_engines_own_counts_are_held_against_limits_and_what_nobody_counts_is_estimated(
    gateway: Gateway, engine: Engine
) -> None:
    path = f"/engines/{MODEL}/api/generate"
    unnamed = session(gateway, "unnamed", rates=Rates(tpm=5000))
    async with unnamed, unnamed.post(path, json={"prompt": "hi"}) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (403, "route_not_allowed")
    async with session(gateway, "named", rates=Rates(tpm=5000), scopes=limited(routes=["any"])) as client:
        asked = {"prompt": "hi", "options": {"num_predict": 24_000}}
        async with client.post(path, json=asked) as response:
            assert response.status == 429
            assert "requested 24,0" in (await response.json())["error"]["message"]
        asked = {"prompt": "hi", "options": {"num_predict": 400}}
        async with client.post(path, json=asked) as response:
            assert b'"eval_count": 290' in await response.read()
        await left(client, 5000 - 26 - 290)
        async with client.post(f"/engines/{MODEL}/api/silent", data=b"x" * 40) as response:
            assert len(await response.read()) == 1001
        await left(client, 5000 - 26 - 290 - 10 - 250)
