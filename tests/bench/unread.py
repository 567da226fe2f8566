"""After what time a realtime request gets a slot that slow readers of another tenant's key may hold."""

import argparse
import asyncio
import contextlib
import json
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from gateway.storage import Store
from tests.bench.site import MODEL, LoadSite, build
from tests.support.processes import House

SLOTS = 8
TOKEN_BYTES = 10_000
SETTLE_S = 2.0
"""After which the realtime request comes: the readers' answers are under way."""
GIVES_UP_S = 70.0
STEP_S = 0.1
RECEIVE_BYTES = 16 * 1024
"""Of the readers' kernels: what they take beyond what was read."""


@dataclass(frozen=True, slots=True)
class Attack:
    """``readers`` answers of ``size_bytes`` to one key, each read at ``rate_bytes_s``."""

    readers: int
    size_bytes: int
    rate_bytes_s: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the realtime request was answered, and after how long it was that or was refused."""

    answered: bool
    seconds: float

    def __str__(self) -> str:
        return f"{'answered' if self.answered else 'refused'} after {self.seconds:.1f} s"


def chat(tokens: int, pad_bytes: int = 0) -> bytes:
    """A streamed chat of so many tokens, as fast as it is taken."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "long"}], "stream": True}
    return json.dumps(asked | {"max_tokens": tokens, "script": {"pad_bytes": pad_bytes}}).encode()


class Reader:
    """Reads one answer at a steady rate, until it is over or cancelled."""

    def __init__(self, site: LoadSite, attack: Attack) -> None:
        self._site, self._attack = site, attack
        self.got_bytes = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", self._site.gateway.port))
            asked = chat(max(1, self._attack.size_bytes // TOKEN_BYTES), TOKEN_BYTES)
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
                f"authorization: Bearer {self._site.key}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(asked)}\r\nconnection: close\r\n\r\n"
            )
            await loop.sock_sendall(sock, head.encode() + asked)
            began_s = loop.time()
            while True:
                may_bytes = int((loop.time() - began_s + STEP_S) * self._attack.rate_bytes_s) - self.got_bytes
                if may_bytes > 0:
                    data = await loop.sock_recv(sock, may_bytes)
                    if not data:
                        return
                    self.got_bytes += len(data)
                else:
                    await asyncio.sleep(STEP_S)


@contextlib.asynccontextmanager
async def reading(site: LoadSite, attack: Attack) -> AsyncIterator[None]:
    """The readers of ``attack``, at it while inside."""
    tasks = [asyncio.create_task(Reader(site, attack).run()) for _ in range(attack.readers)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def realtime(site: LoadSite, key: str) -> Outcome:
    """A short realtime request with ``key``."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    headers["x-trunkline-tier"] = "realtime"
    began_s = time.monotonic()
    async with aiohttp.ClientSession(site.gateway.url, headers=headers) as session:
        timeout = aiohttp.ClientTimeout(total=GIVES_UP_S)
        async with session.post("/v1/chat/completions", data=chat(3), timeout=timeout) as response:
            answer = await response.read()
            return Outcome(answer.endswith(b"data: [DONE]\n\n"), time.monotonic() - began_s)


async def run(site: LoadSite, other_key: str, attack: Attack) -> Outcome:
    """The realtime request with ``other_key`` comes while the readers are at it."""
    async with reading(site, attack):
        await asyncio.sleep(SETTLE_S)
        outcome = await realtime(site, other_key)
    await asyncio.to_thread(site.engine.until_idle, 30.0)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.unread", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50_000, 1_000_000, 20_000_000])
    parser.add_argument("--readers", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 5_000, 50_000])
    parser.add_argument("--disk-bytes", type=int, help="dispatch.unread_disk_bytes of the gateway")
    arguments = parser.parse_args()
    environment = {}
    if arguments.disk_bytes is not None:
        environment["TRUNKLINE_GATEWAY_DISPATCH__UNREAD_DISK_BYTES"] = str(arguments.disk_bytes)
    with tempfile.TemporaryDirectory(prefix="trunkline-") as directory, House(Path(directory)) as house:
        site = build(house, slots=SLOTS, environment=environment)
        with Store.open(site.gateway.state) as store:
            other_key = store.keys.create("other", "another tenant", time.time())
        for size_bytes in arguments.sizes:
            for readers in arguments.readers:
                for rate_bytes_s in arguments.rates:
                    outcome = asyncio.run(run(site, other_key, Attack(readers, size_bytes, rate_bytes_s)))
                    what = f"{size_bytes:>9} bytes {readers:>3} readers {rate_bytes_s:>6} bytes/s"
                    sys.stdout.write(f"{what}  {outcome}\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
