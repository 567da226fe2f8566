"""Requests that belong together, through a real gateway and agents; and paths that engines lack."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.processes import Gateway, House
from tests.support.threaded_server import served_in_thread

MODEL = "comfy"
HOSTS = ("host-a", "host-b")


class Handler(BaseHTTPRequestHandler):
    """An engine of no known kind that tells which one it is, in ComfyUI's manner."""

    protocol_version = "HTTP/1.1"

    def __init__(self, name: str, asked: list[str], *arguments: Any) -> None:
        self.name, self.asked = name, asked
        super().__init__(*arguments)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.say(200, json.dumps({"data": [{"id": MODEL}]}))
        elif self.path.startswith("/history/"):
            self.say(200, json.dumps({"host": self.name}))
        else:
            self.say(404, "404: Not Found")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.asked.append(self.path)
        self.say(404, "404: Not Found")

    def say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json" if status == 200 else "text/plain")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def asked() -> list[str]:
    return []


@pytest.fixture(scope="module")
def gateway(asked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    directory: Path = tmp_path_factory.mktemp("together")
    with House(directory) as house, ExitStack() as engines:
        gateway = house.gateway()
        for host in HOSTS:
            server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, host, asked))
            url = engines.enter_context(served_in_thread(server))
            house.agent(gateway, url, "--name", host, name=host)
        house.wait_for_model(gateway, gateway.key("waiting"), MODEL)
        yield gateway


async def host_of(client: aiohttp.ClientSession, path: str, **headers: str) -> str:
    async with client.get(path, headers=headers) as response:
        assert response.status == 200, await response.text()
        return str((await response.json())["host"])


def client_of(gateway: Gateway, key: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(gateway.url, headers={"authorization": f"Bearer {gateway.key(key)}"})


async def until_there(client: aiohttp.ClientSession) -> None:
    """Both agents serve the model."""
    for host in HOSTS:
        for _ in range(300):
            async with client.get(f"/engines/{MODEL}@{host}/history/0") as response:
                if response.status == 200:
                    break


async def test_what_belongs_together_goes_to_one_host(gateway: Gateway) -> None:
    async with client_of(gateway, "plain") as client:
        await until_there(client)
        hosts = [await host_of(client, f"/engines/{MODEL}/history/{number}") for number in range(16)]
        assert len(set(hosts)) == 1
        sessions = {
            name: {
                await host_of(client, f"/engines/{MODEL}/history/1", **{"x-trunkline-session": name})
                for _ in range(3)
            }
            for name in map(str, range(16))
        }
        assert all(len(seen) == 1 for seen in sessions.values())
        assert set.union(*sessions.values()) == set(HOSTS)
        for host in HOSTS:
            assert await host_of(client, f"/engines/{MODEL}@{host}/history/1") == host
        async with client.get(f"/engines/{MODEL}@nobody/history/1") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (503, "agent_unavailable")


async def test_a_path_that_no_engine_has_is_asked_for_once_at_each(
    gateway: Gateway, asked: list[str]
) -> None:
    async with client_of(gateway, "asking") as client:
        await until_there(client)
        for _ in range(4):
            async with client.post("/v1/rerank", json={"model": MODEL, "query": "q"}) as response:
                said = (response.status, (await response.json())["error"]["code"])
                assert said == (404, "route_not_supported")
        assert asked.count("/v1/rerank") == len(HOSTS)
