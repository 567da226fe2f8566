"""A large file in and out through ``/v1/files``: the gateway's memory meanwhile, and the pace."""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

from tests.bench.figures import cpu_s, mebibytes
from tests.support.leaks import rss_bytes
from tests.support.processes import Gateway, House

MEBIBYTE = 2**20
_PIECE = os.urandom(MEBIBYTE)
_SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Passage:
    """One way."""

    peak_rss_bytes: int
    seconds: float
    cpu_s: float
    """Of the gateway."""


@dataclass(frozen=True, slots=True)
class LargeFile:
    """Of one run."""

    size_bytes: int
    idle_rss_bytes: int
    in_: Passage
    out: Passage
    intact: bool

    def __str__(self) -> str:
        def shown(name: str, way: Passage) -> str:
            pace, cost = (self.size_bytes / 1e6 / seconds for seconds in (way.seconds, max(way.cpu_s, 1e-3)))
            more = mebibytes(way.peak_rss_bytes - self.idle_rss_bytes)
            peak = f"peak {mebibytes(way.peak_rss_bytes)} resident ({more} above idle)"
            return f"{name}: {pace:,.0f} MB/s, {cost:,.0f} MB per second of the gateway's CPU, {peak}"

        head = f"{mebibytes(self.size_bytes)}, idle {mebibytes(self.idle_rss_bytes)} resident; "
        tail = "same bytes" if self.intact else "OTHER BYTES"
        return f"{head}{tail}\n{shown('in ', self.in_)}\n{shown('out', self.out)}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def run(house: House, mebibyte: int) -> LargeFile:
    """One file of so many MiB, in and then out."""
    gateway = house.gateway("--log-level", "warning")
    return asyncio.run(_pass(gateway, gateway.key("bench"), mebibyte))


async def _pass(gateway: Gateway, key: str, mebibyte: int) -> LargeFile:
    headers, timeout = {"authorization": f"Bearer {key}"}, aiohttp.ClientTimeout(3600)
    digests = [hashlib.sha256(), hashlib.sha256()]

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(mebibyte):
            piece = number.to_bytes(8, "big") + _PIECE[8:]
            digests[0].update(piece)
            yield piece

    async with aiohttp.ClientSession(gateway.url, headers=headers, timeout=timeout) as client:
        async with client.post("/v1/files", data=_form(b"warm")) as warmed:
            assert warmed.status == 200, await warmed.text()
        await asyncio.sleep(_SETTLE_S)
        idle_bytes, watch = rss_bytes(gateway.child.pid), _Watch(gateway.child.pid)
        async with client.post("/v1/files", data=_form(pieces())) as stored:
            assert stored.status == 200, await stored.text()
            file = await stored.json()
        in_ = watch.passed()
        watch = _Watch(gateway.child.pid)
        async with client.get(f"/v1/files/{file['id']}/content") as content:
            assert content.status == 200, await content.text()
            async for data in content.content.iter_chunked(MEBIBYTE):
                digests[1].update(data)
        out = watch.passed()
    same = digests[0].digest() == digests[1].digest() and file["bytes"] == mebibyte * MEBIBYTE
    return LargeFile(mebibyte * MEBIBYTE, idle_bytes, in_, out, same)


def _form(content: object) -> aiohttp.FormData:
    form = aiohttp.FormData(quote_fields=False)
    form.add_field("purpose", "user_data")
    form.add_field("file", content, filename="large.bin", content_type="application/octet-stream")
    return form


class _Watch:
    """The highest memory of a process from now on, as the kernel knows it, and its CPU."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is what there is now
        self._began_s, self._cpu_s = time.monotonic(), cpu_s(pid)

    def passed(self) -> Passage:
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                peak_bytes = int(line.split()[1]) * 1024
        took_s = time.monotonic() - self._began_s
        return Passage(peak_bytes, took_s, cpu_s(self._pid) - self._cpu_s)
