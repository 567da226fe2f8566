"""The gateway's machine fails: fewer are served, it is said once, and it is over when it is over."""

import asyncio
import json
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration.asking import CHAT, chat
from tests.integration.conftest import Site, build_site, leave
from tests.support.huge_pages import can_collapse, heap_in_huge_pages_kib
from tests.support.leaks import descriptor_count
from tests.support.logged_events import logged_events
from tests.support.processes import answer_to, until

TOKENS = 60
STREAM = chat(stream=True, max_tokens=TOKENS, script={"tokens_per_s": 40})

MORE = 60
"""Descriptors that the gateway has left for everything."""

STILL_S = 2.0
"""Shorter than the agent waits for a word from its gateway."""


def said(site: Site, *events: str) -> list[dict[str, Any]]:
    """The lines of the gateway's log with one of these events."""
    return logged_events(site.gateway.child.log, *events)


def knock(site: Site) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", site.gateway.port))
    connection.settimeout(60.0)
    return connection


@pytest.fixture(scope="module")
def own_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One whose log nobody else writes to."""
    built = build_site(tmp_path_factory.mktemp("machine"))
    yield built
    leave(built.house)


@pytest.fixture
async def client(own_site: Site) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"authorization": f"Bearer {own_site.key}"}
    async with aiohttp.ClientSession(own_site.gateway.url, headers=headers) as session:
        yield session


async def test_it_has_no_descriptors_left(own_site: Site, client: aiohttp.ClientSession) -> None:
    site, session = own_site, client
    pid = site.gateway.child.pid
    most = descriptor_count(pid) + MORE
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))
    try:
        response = await session.post(CHAT, json=STREAM)
        first = await response.content.readany()
        crowd = [knock(site) for _ in range(3 * MORE)]
        try:
            refused = await asyncio.to_thread(crowd[-1].recv, 4096)
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after" in refused
            rest = await response.read()
        finally:
            for connection in crowd:
                connection.close()
        await asyncio.to_thread(until, "descriptors are back", lambda: said(site, "descriptors_back"))
        answer = await (await session.post(CHAT, json=chat(max_tokens=3))).json()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert text_of(first + rest) == answer_to("hi", TOKENS)
    assert answer["choices"][0]["message"]["content"] == answer_to("hi", 3)
    lines = said(site, "descriptors_exhausted", "descriptors_back")
    assert [line["event"] for line in lines] == ["descriptors_exhausted", "descriptors_back"]


async def test_not_one_descriptor_is_left(own_site: Site, client: aiohttp.ClientSession) -> None:
    pid, before = own_site.gateway.child.pid, len(said(own_site, "descriptors_back"))
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    response = await client.post(CHAT, json=STREAM)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (10, hard))
    try:
        waiting = knock(own_site)
        await asyncio.sleep(1.5)
        spent_s = cpu_s(pid)
        await asyncio.sleep(0.5)
        assert cpu_s(pid) - spent_s < 0.25
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    waiting.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await asyncio.to_thread(waiting.recv, 4096)).startswith(b"HTTP/1.1 200 ")
    waiting.close()
    assert text_of(await response.read()) == answer_to("hi", TOKENS)
    await asyncio.to_thread(
        until, "descriptors are back", lambda: len(said(own_site, "descriptors_back")) > before
    )
    lines = [line["event"] for line in said(own_site, "descriptors_exhausted", "descriptors_back")]
    assert lines[2 * before :] == ["descriptors_exhausted", "descriptors_back"]


def cpu_s(pid: int) -> float:
    """The time that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_it_stands_still_for_a_while(own_site: Site, client: aiohttp.ClientSession) -> None:
    response = await client.post(CHAT, json=STREAM)
    first = await response.content.readany()
    own_site.gateway.child.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(STILL_S)
    finally:
        own_site.gateway.child.signal(signal.SIGCONT)
    rest = await response.read()
    assert text_of(first + rest) == answer_to("hi", TOKENS)
    await asyncio.to_thread(until, "it is told", lambda: said(own_site, "process_stood_still"))
    lines = said(own_site, "process_stood_still")
    assert any(line["for_s"] > STILL_S - 0.5 for line in lines)
    assert said(own_site, "agent_suspended", "agent_lost") == []


@pytest.mark.skipif(not can_collapse(), reason="no native functions, or no collapsing here")
def test_gateway_and_agent_have_what_they_began_with_in_huge_pages(site: Site) -> None:
    pids = {child.name: child.pid for child in site.house.children if child.name in ("gateway", "agent")}
    assert len(pids) == 2
    for name, pid in pids.items():

        def collapsed(pid: int = pid) -> bool:
            return heap_in_huge_pages_kib(pid) >= 4 << 10

        until(f"the {name}'s heap is in huge pages", collapsed)


def text_of(stream: bytes) -> str:
    """What a streamed chat says."""
    events = [
        line[6:] for line in stream.splitlines() if line.startswith(b"data: ") and b"[DONE]" not in line
    ]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events)
