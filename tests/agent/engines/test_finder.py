"""Engines on the usual ports are found, and nothing else is taken for one."""

import asyncio

import pytest

from agent.engines.finder import Finder, NoEngine, comfyui_at, kind_at
from agent.engines.http.kind import (
    COMFYUI,
    LLAMA_CPP,
    LLAMA_CPP_PYTHON,
    OLLAMA,
    USUAL_PORTS,
    VLLM,
    EngineKind,
)
from tests.agent.support.canned import canned, until
from tests.support.scripted_engine import ScriptedEngine


def models(owner: str) -> bytes:
    body = b'{"data":[{"id":"m","owned_by":"%s"}]}' % owner.encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


class Notes:
    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.looks = 0

    async def note(self, url: str, name: str) -> None:
        self.found.append((url, name))

    async def sleep(self, delay_s: float) -> None:
        self.looks += 1
        if self.looks > 5:
            await asyncio.Event().wait()
        await asyncio.sleep(0)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_an_engine_is_found_once_and_called_after_its_kind(no_leaks: None) -> None:
    notes = Notes()
    async with canned(models("vllm"), close=True) as one, canned(models("vllm"), close=True) as two:
        finder = Finder(notes.note, [port_of(one.url), port_of(two.url), 9], notes.sleep)
        await finder.look()
        await finder.look()
    assert notes.found == [(each.url, f"vllm-{port_of(each.url)}") for each in (one, two)]


async def test_an_engine_that_comes_later_is_found_too(no_leaks: None) -> None:
    notes = Notes()
    async with ScriptedEngine() as engine:
        port = engine.port
    finder = Finder(notes.note, [port], notes.sleep)
    await finder.look()
    assert notes.found == []
    async with ScriptedEngine(port=port):
        await finder.run()  # ends, as every port has its engine
    assert notes.found == [(f"http://127.0.0.1:{port}", f"engine-{port}")]


async def test_it_keeps_looking_while_there_is_nothing(no_leaks: None) -> None:
    notes = Notes()
    running = asyncio.ensure_future(Finder(notes.note, [9], notes.sleep).run())
    while notes.looks < 5:  # noqa: ASYNC110
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert notes.found == []


async def test_only_a_list_of_models_makes_an_engine(no_leaks: None) -> None:
    answers: list[tuple[bytes, EngineKind | NoEngine]] = [
        (models("vllm"), VLLM),
        (models("llamacpp"), LLAMA_CPP),
        (models("library"), OLLAMA),
        (models("me"), LLAMA_CPP_PYTHON),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", NoEngine.OTHER),
        (b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}", NoEngine.OTHER),
        (b"SSH-2.0-OpenSSH_9.6\r\n", NoEngine.OTHER),
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", NoEngine.LOADING),
    ]
    for answer, kind in answers:
        async with canned(answer, close=True) as server:
            assert await kind_at(server.url) is kind


@pytest.mark.parametrize(
    "status", ["200 OK", "302 Found", "401 Unauthorized", "404 Not Found", "502 Bad Gateway"]
)
async def test_a_server_that_is_no_engine_gets_one_request_however_long_it_listens(
    status: str, no_leaks: None
) -> None:
    notes = Notes()
    answer = f"HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nok".encode()
    async with canned(answer, close=True) as bystander:
        finder = Finder(notes.note, [port_of(bystander.url)], notes.sleep)
        for _ in range(20):
            await finder.look()
        assert bystander.received.count(b"GET ") == 1
        assert b"GET /v1/models " in bystander.received
    assert notes.found == []


async def test_another_server_at_a_bystanders_port_is_asked_anew(no_leaks: None) -> None:
    notes = Notes()
    async with canned(b"SSH-2.0-OpenSSH_9.6\r\n", close=True) as bystander:
        port = port_of(bystander.url)
        finder = Finder(notes.note, [port], notes.sleep)
        await finder.look()
    await finder.look()
    async with ScriptedEngine(port=port):
        await finder.look()
    assert notes.found == [(f"http://127.0.0.1:{port}", f"engine-{port}")]


async def test_an_engine_that_still_loads_is_asked_less_and_less_often_and_found(no_leaks: None) -> None:
    notes = Notes()
    async with ScriptedEngine() as engine:
        engine.healthy = False
        finder = Finder(notes.note, [engine.port], notes.sleep)
        asked = []
        for _ in range(40):
            await finder.look()
            asked.append(engine.stats.requests.count("GET /v1/models"))
        assert (asked[0], asked[1], asked[39]) == (1, 2, 5)
        engine.healthy = True
        for _ in range(21):
            await finder.look()
    assert [name for _, name in notes.found] == [f"engine-{engine.port}"]


async def test_a_server_that_does_not_answer_holds_up_no_other_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.engines.finder.LOOK_S", 0.01)
    notes = Notes()
    async with canned(deaf=True) as silent, ScriptedEngine() as engine:
        finder = Finder(notes.note, [port_of(silent.url), engine.port], notes.sleep)
        running = asyncio.ensure_future(finder.run())
        await until(lambda: notes.found)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert notes.found == [(engine.url, f"engine-{engine.port}")]


COMFYUI_SAYS = b'{"system":{"comfyui_version":"0.3.75","os":"posix"},"devices":[]}'


def said(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (said("200 OK", COMFYUI_SAYS), COMFYUI),
        (said("200 OK", b'{"system":{"os":"posix"}}'), NoEngine.OTHER),
        (said("200 OK", b"[]"), NoEngine.OTHER),
        (said("404 Not Found", b"{}"), NoEngine.OTHER),
        (said("503 Service Unavailable", b""), NoEngine.LOADING),
    ],
)
async def test_comfyui_is_known_by_its_facts(answer: bytes, kind: EngineKind | NoEngine) -> None:
    async with canned(answer, close=True) as server:
        assert await comfyui_at(server.url) is kind


async def test_comfyui_is_found_at_its_usual_port_with_one_request(no_leaks: None) -> None:
    notes = Notes()
    async with canned(said("200 OK", COMFYUI_SAYS), close=True) as server:
        port = port_of(server.url)
        finder = Finder(notes.note, [port], notes.sleep, {port: COMFYUI})
        await finder.look()
        await finder.look()
        assert server.received.count(b"GET ") == 1
        assert b"GET /system_stats " in server.received
    assert notes.found == [(f"comfyui:{server.url}", f"comfyui-{port}")]


def test_comfyuis_port_is_8188() -> None:
    assert USUAL_PORTS[8188] is COMFYUI
