"""The gateway's machine fails: fewer are served, it is said once, and it is over when it is over."""

import asyncio
import json
import resource
import socket
from collections.abc import Callable
from typing import Any

import aiohttp

from tests.integration.asking import CHAT, chat
from tests.integration.conftest import Site
from tests.support.leaks import descriptor_count
from tests.support.processes import answer_to, until

MORE = 60
"""Descriptors that the gateway has left for everything."""


def said(site: Site, *events: str) -> list[dict[str, Any]]:
    """The lines of the gateway's log with one of these events."""
    lines = [line for line in site.gateway.child.log.read_text().splitlines() if line.startswith("{")]
    return [entry for line in lines if (entry := json.loads(line))["event"] in events]


def knock(site: Site) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", site.gateway.port))
    connection.settimeout(5.0)
    return connection


def test_it_has_no_descriptors_left(new_site: Callable[..., Site]) -> None:
    asyncio.run(run_out_of_descriptors(new_site()))


async def run_out_of_descriptors(site: Site) -> None:
    pid = site.gateway.child.pid
    most = descriptor_count(pid) + MORE
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
    headers = {"authorization": f"Bearer {site.key}"}
    body = chat(stream=True, max_tokens=60, script={"tokens_per_s": 40})
    async with aiohttp.ClientSession(site.gateway.url, headers=headers) as session:
        response = await session.post(CHAT, json=body)
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
        await asyncio.to_thread(until, "descriptors are back", lambda: said(site, "descriptors_back"), 5.0)
        answer = await (await session.post(CHAT, json=chat(max_tokens=3))).json()
    assert text_of(first + rest) == answer_to("hi", 60)
    assert answer["choices"][0]["message"]["content"] == answer_to("hi", 3)
    lines = said(site, "descriptors_exhausted", "descriptors_back")
    assert [line["event"] for line in lines] == ["descriptors_exhausted", "descriptors_back"]


def text_of(stream: bytes) -> str:
    """What a streamed chat says."""
    events = [
        line[6:] for line in stream.splitlines() if line.startswith(b"data: ") and b"[DONE]" not in line
    ]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events)
