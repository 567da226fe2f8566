"""Clients that stop reading, beside others that read."""

import asyncio
from dataclasses import dataclass

from gateway.dispatch.dispatcher import DispatchSettings
from shared.protocol.limits import SESSION_WINDOW_BYTES
from tests.bench.clients import chat_request, open_stream
from tests.bench.figures import mebibytes, milliseconds, percentile
from tests.bench.site import MODEL, LoadSite
from tests.support.leaks import rss_bytes

CLIENT_BUFFER_BYTES = 128 * 1024
"""What the gateway may have handed to one client's transport beyond what the client read."""
UNREAD_BYTES = DispatchSettings().unread_bytes // 4
"""What the gateway keeps beyond that of answers that one key's clients have not read."""
ENVIRONMENT = {"TRUNKLINE_GATEWAY_DISPATCH__UNREAD_DISK_BYTES": str(64 * 2**20)}
"""The gateway's: its file is full soon, so that those who have stopped are looked at, and not what engines
hand over to the file."""
_SLACK_BYTES = 24 * 2**20
"""Python's own: objects, arenas, and allocators that keep what was freed."""
_LONG_TOKENS = 5_000
_LONG_BYTES = 4_000
"""Of each token. An answer is more than all buffers on its way hold, and few tokens fill them soon."""
_KERNEL_BYTES = 64 * 1024
_SETTLE_S = 30.0
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Stalled:
    """Figures of one run. ``bound_bytes`` is what the gateway may have grown by."""

    stalled: int
    readers: int
    readers_complete: int
    gateway_growth_bytes: int
    agent_growth_bytes: int
    bound_bytes: int
    gap_p99_alone_s: float
    gap_p99_beside_s: float

    def __str__(self) -> str:
        return "\n".join(
            [
                f"clients that stopped    {self.stalled}",
                f"clients that read on    {self.readers}, complete {self.readers_complete}",
                f"gateway RSS grew by     {mebibytes(self.gateway_growth_bytes)}",
                f"agent RSS grew by       {mebibytes(self.agent_growth_bytes)}",
                f"bound                   {mebibytes(self.bound_bytes)}",
                f"gap p99 before, beside  "
                f"{milliseconds(self.gap_p99_alone_s)}, {milliseconds(self.gap_p99_beside_s)}",
            ]
        )


async def run(site: LoadSite, stalled: int, readers: int, seconds: float, times: int = 1) -> Stalled:
    """``readers`` paced streams alone, then the same beside ``stalled`` clients that read nothing. Looked at
    anew while it is not quiet, at most so many ``times``, the quietest counts: whoever stopped reading is
    there each time, other programs are not."""
    alone, _ = await _paced(site, readers, seconds)
    pids = (site.gateway.child.pid, site.agent.pid)
    before = [rss_bytes(pid) for pid in pids]
    flood = chat_request(site.key, MODEL, tokens=_LONG_TOKENS, pad_bytes=_LONG_BYTES)
    stuck = []
    for _ in range(stalled):
        stream = await open_stream(site.gateway.port, flood, False, _KERNEL_BYTES)
        stream.transport.pause_reading()
        stuck.append(stream)
    await _settled(site)
    seen = [await _paced(site, readers, seconds)]
    while len(seen) < times and percentile(seen[-1][0], 0.99) > 2 * percentile(alone, 0.99):
        seen.append(await _paced(site, readers, seconds))
    grown = [rss_bytes(pid) - begun for pid, begun in zip(pids, before, strict=True)]
    for stream in stuck:
        stream.transport.abort()
    await asyncio.to_thread(site.engine.until_idle, 5.0)
    return Stalled(
        stalled=stalled,
        readers=readers,
        readers_complete=min(complete for _, complete in seen),
        gateway_growth_bytes=grown[0],
        agent_growth_bytes=grown[1],
        bound_bytes=SESSION_WINDOW_BYTES + stalled * CLIENT_BUFFER_BYTES + UNREAD_BYTES + _SLACK_BYTES,
        gap_p99_alone_s=percentile(alone, 0.99),
        gap_p99_beside_s=min(percentile(beside, 0.99) for beside, _ in seen),
    )


async def _paced(site: LoadSite, readers: int, seconds: float) -> tuple[list[float], int]:
    """The gaps of ``readers`` streams of 20 tokens a second, and how many of them came to their end."""
    request = chat_request(site.key, MODEL, tokens=int(20 * seconds), tokens_per_s=20, pad_bytes=24)
    opened = [await open_stream(site.gateway.port, request) for _ in range(readers)]
    readings = await asyncio.gather(*(stream.finished() for stream in opened))
    gaps = [gap for reading in readings for gap in reading.gaps_s or ()]
    return gaps, sum(reading.done for reading in readings)


async def _settled(site: LoadSite) -> None:
    """Return once all buffers on the way are full: the engine sends nothing more."""
    deadline_s = asyncio.get_running_loop().time() + _SETTLE_S
    sent, before = 0, -1
    while sent != before and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(_LOOK_S)
        sent, before = int((await asyncio.to_thread(site.engine.stats))["sent_tokens"]), sent
