"""Engines on the usual ports are found, and nothing else is taken for one."""

import asyncio

from agent.backends.engine_kind import LLAMA_CPP, OLLAMA, VLLM, EngineKind
from agent.finder import Finder, kind_at
from tests.agent.canned import canned
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
    assert notes.found == [(one.url, "vllm"), (two.url, f"vllm-{port_of(two.url)}")]


async def test_an_engine_that_comes_later_is_found_too(no_leaks: None) -> None:
    notes = Notes()
    async with ScriptedEngine() as engine:
        port = engine.port
    finder = Finder(notes.note, [port], notes.sleep)
    await finder.look()
    assert notes.found == []
    async with ScriptedEngine(port=port):
        await finder.run()  # ends, as every port has its engine
    assert notes.found == [(f"http://127.0.0.1:{port}", "engine")]


async def test_it_keeps_looking_while_there_is_nothing(no_leaks: None) -> None:
    notes = Notes()
    running = asyncio.ensure_future(Finder(notes.note, [9], notes.sleep).run())
    while notes.looks < 5:  # noqa: ASYNC110
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert notes.found == []


async def test_only_a_list_of_models_makes_an_engine(no_leaks: None) -> None:
    answers: list[tuple[bytes, EngineKind | None]] = [
        (models("vllm"), VLLM),
        (models("llamacpp"), LLAMA_CPP),
        (models("library"), OLLAMA),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", None),
        (b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}", None),
        (b"SSH-2.0-OpenSSH_9.6\r\n", None),
    ]
    for answer, kind in answers:
        async with canned(answer, close=True) as server:
            assert await kind_at(server.url) is kind
