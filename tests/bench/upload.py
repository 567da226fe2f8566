"""A large body beside token streams on one narrow tunnel (PROTOCOL, Order on the wire)."""

import asyncio
import hashlib
import json
from dataclasses import dataclass

from tests.bench.clients import TokenStream, chat_request, open_stream, post
from tests.bench.figures import milliseconds, percentile
from tests.bench.site import MODEL, LoadSite

RATE_MBIT = 10.0
_TOKENS_PER_S = 50.0
_LONG_S = 600
_IDLE_S = 5.0
_BOUNDARY = "trunkline-bench"


@dataclass(frozen=True, slots=True)
class Beside:
    """Figures of one run. The body goes up to the engine, or comes down from it."""

    direction: str
    size_bytes: int
    took_s: float
    intact: bool
    gap_p99_alone_s: float
    gap_p99_beside_s: float
    gaps_beside: int

    @property
    def ratio(self) -> float:
        return self.gap_p99_beside_s / self.gap_p99_alone_s

    @property
    def mbit_per_s(self) -> float:
        return self.size_bytes * 8 / 1e6 / self.took_s

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.direction:<23} {self.size_bytes / 1e6:.0f} MB in {self.took_s:.1f} s "
                f"({self.mbit_per_s:.2f} Mbit/s), {'intact' if self.intact else 'BROKEN'}",
                f"gap p99 alone, beside   "
                f"{milliseconds(self.gap_p99_alone_s)}, {milliseconds(self.gap_p99_beside_s)}",
                f"ratio                   {self.ratio:.2f} ({self.gaps_beside} gaps)",
            ]
        )


async def run(
    site: LoadSite,
    size_bytes: int,
    streams: int,
    alone_s: float,
    *,
    warm_s: float = 1.0,
    down: bool = False,
) -> Beside:
    """Token streams alone for ``alone_s``, after ``warm_s``, then beside the body for as long as that
    takes."""
    request = chat_request(site.key, MODEL, tokens=int(_LONG_S * _TOKENS_PER_S), tokens_per_s=_TOKENS_PER_S)
    opened = [await open_stream(site.gateway.port, request) for _ in range(streams)]
    await asyncio.sleep(warm_s)
    _restart(opened)
    await asyncio.sleep(alone_s)
    alone = _restart(opened)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    intact = await (_download if down else _upload)(site, size_bytes)
    took_s = loop.time() - began_s
    beside = _restart(opened)
    for stream in opened:
        stream.transport.abort()
    await asyncio.to_thread(site.engine.until_idle, _IDLE_S)
    return Beside(
        direction="download" if down else "upload",
        size_bytes=size_bytes,
        took_s=took_s,
        intact=intact,
        gap_p99_alone_s=percentile(alone, 0.99),
        gap_p99_beside_s=percentile(beside, 0.99),
        gaps_beside=len(beside),
    )


def _restart(streams: list[TokenStream]) -> list[float]:
    """The gaps measured so far; the streams begin to measure anew."""
    gaps = [gap for stream in streams for gap in stream.seen.gaps_s or ()]
    for stream in streams:
        stream.seen.gaps_s = []
    return gaps


async def _upload(site: LoadSite, size_bytes: int) -> bool:
    """Send a file; True if the engine answers with its digest."""
    content = bytes(range(256)) * (size_bytes // 256)
    part = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="model"\r\n\r\n{MODEL}\r\n'
    part += f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    body = part.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
    kind = f"multipart/form-data; boundary={_BOUNDARY}"
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port)
    writer.write(post(site.key, "/v1/audio/transcriptions", kind, body))
    answer = await reader.read(-1)
    writer.close()
    return hashlib.sha256(content).hexdigest().encode() in answer


async def _download(site: LoadSite, size_bytes: int) -> bool:
    """Have the engine answer a plain chat of that size; True if all of it came."""
    script = {"pad_bytes": 1000}
    messages = [{"role": "user", "content": "load"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": size_bytes // 1000, "script": script}
    reader, writer = await asyncio.open_connection("127.0.0.1", site.gateway.port)
    writer.write(post(site.key, "/v1/chat/completions", "application/json", json.dumps(body).encode()))
    received = 0
    while data := await reader.read(2**20):
        received += len(data)
    writer.close()
    return received >= size_bytes // 1000 * 1000
