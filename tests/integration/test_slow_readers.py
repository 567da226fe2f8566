"""Clients that hardly read their answers, over real sockets: their engines' slots are free all the same."""

import asyncio
import json
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
import pytest

from shared.protocol.limits import MIB
from tests.integration.conftest import MODEL, Site
from tests.support.scripted_engine import tokens_of

SLOTS = 8
TOKENS = 750
PAD_BYTES = 2400
PROMPT = "a long answer"
WAITS_S = 60.0
"""Another client's request waits for so long at most; for a slot a slow reader holds it would be 60 s."""


def body(**more: object) -> bytes:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    return json.dumps(asked | {"max_tokens": TOKENS, "script": {"pad_bytes": PAD_BYTES}} | more).encode()


class SlowReader:
    """Asks for a long streamed answer and takes next to nothing of it, with a small window at that."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.got = b""

    async def ask(self) -> None:
        loop = asyncio.get_running_loop()
        url = urlsplit(self._site.gateway.url)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setblocking(False)
        await loop.sock_connect(self.socket, (url.hostname, url.port))
        asked = body()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {url.netloc}\r\n"
            f"authorization: Bearer {self._site.key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(asked)}\r\nconnection: close\r\n\r\n"
        )
        await loop.sock_sendall(self.socket, head.encode() + asked)
        self.got = await loop.sock_recv(self.socket, 1000)

    async def read_on(self) -> bytes:
        """The rest of the answer, body and all."""
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self.socket, 1 << 20):
            self.got += data
        return self.got


async def occupied(
    new_site: Callable[..., Site], **dispatch: int
) -> tuple[Site, list[SlowReader], dict[str, str]]:
    """A site with these settings, all of whose slots slow readers have; and headers of another client."""
    environment = {f"TRUNKLINE_GATEWAY_DISPATCH__{name}": str(value) for name, value in dispatch.items()}
    site = await asyncio.to_thread(new_site, "--slots", str(SLOTS), gateway_environment=environment)
    slow = [SlowReader(site) for _ in range(SLOTS)]
    await asyncio.gather(*(each.ask() for each in slow))
    other = await asyncio.to_thread(site.gateway.key, "other")
    headers = {"authorization": f"Bearer {other}", "content-type": "application/json"}
    return site, slow, headers | {"x-trunkline-tier": "realtime"}


async def is_answered_soon(session: aiohttp.ClientSession) -> None:
    """A request that finds every slot taken."""
    asked = session.post("/v1/chat/completions", data=body(max_tokens=3))
    async with asyncio.timeout(WAITS_S), asked as response:
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


def said(answer: bytes) -> str:
    """The text of a streamed chat in chunked HTTP."""
    data = answer.partition(b"\r\n\r\n")[2]
    whole = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        whole, data = whole + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return text_of(whole)


def text_of(stream: bytes) -> str:
    """The text of a streamed chat, which is whole."""
    assert stream.endswith(b"data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in events if each["choices"])


@pytest.mark.parametrize("unread_bytes", [256 * MIB, MIB], ids=["in memory", "on disk"])
async def test_slow_readers_hold_no_slot_once_their_engine_is_done(
    new_site: Callable[..., Site], unread_bytes: int
) -> None:
    site, slow, headers = await occupied(new_site, UNREAD_BYTES=unread_bytes)
    async with aiohttp.ClientSession(site.gateway.url, headers=headers) as session:
        await is_answered_soon(session)
        figures = await (await session.get("/metrics")).text()
    assert ("trunkline_unread_disk_bytes 0.0" in figures) == (unread_bytes > MIB)
    for each in slow:
        assert said(await each.read_on()) == "".join(tokens_of(PROMPT, TOKENS, PAD_BYTES))
        each.socket.close()
    async with aiohttp.ClientSession(site.gateway.url, headers=headers) as session:
        figures = await (await session.get("/metrics")).text()
    assert "trunkline_unread_bytes 0.0" in figures
    assert "trunkline_unread_disk_bytes 0.0" in figures


async def test_slow_readers_lose_their_slots_soon_where_nothing_has_room(
    new_site: Callable[..., Site],
) -> None:
    """As if the memory and the file of their key were used up."""
    site, slow, headers = await occupied(new_site, UNREAD_BYTES=0, UNREAD_DISK_BYTES=0)
    async with aiohttp.ClientSession(site.gateway.url, headers=headers) as session:
        await is_answered_soon(session)
    ends = [await each.read_on() for each in slow]
    assert sum(b"read_too_slowly" in end for end in ends) == 1, "as many as waited"
    assert sum(end.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for end in ends) == SLOTS - 1
    for each in slow:
        each.socket.close()


async def test_a_single_event_of_ten_megabytes_passes_whole(site: Site) -> None:
    size_bytes = 10 * 1024 * 1024
    headers = {"authorization": f"Bearer {site.key}", "content-type": "application/json"}
    asked = body(max_tokens=1, script={"pad_bytes": size_bytes})
    async with aiohttp.ClientSession(site.gateway.url, headers=headers) as session:
        answer = await (await session.post("/v1/chat/completions", data=asked)).read()
    assert text_of(answer) == tokens_of(PROMPT, 1, size_bytes)[0]
