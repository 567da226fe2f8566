"""How old progress is when a client reads it: from a model's saying it, through its processes, an agent and a
gateway, to the comment in the stream. What a newer one took the place of is not read, and does not count.
"""

import asyncio
import json
import time
from base64 import b64decode
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp

from tests.bench.progress_model import PREVIEW_BYTES
from tests.support.processes import Gateway, House

CLIENTS = 16
SECONDS = 30.0
_MARK = b": progress "


@dataclass(frozen=True, slots=True)
class AgeFigures:
    """Of what was read, of all clients together."""

    read: int
    p50_ms: float
    p99_ms: float
    worst_ms: float

    @classmethod
    def of(cls, ages_s: list[float]) -> "AgeFigures":
        found = [1000 * age_s for age_s in sorted(ages_s)]
        return cls(len(found), found[len(found) // 2], found[len(found) * 99 // 100], found[-1])

    def __str__(self) -> str:
        return (
            f"{self.read:5d} read, age p50 {self.p50_ms:6.1f} ms   p99 {self.p99_ms:6.1f} ms   "
            f"worst {self.worst_ms:6.1f} ms"
        )


@dataclass(frozen=True, slots=True)
class ProgressFigures:
    clients: int
    reports: int
    """That the model made, of each of its items."""
    words: AgeFigures
    previews: AgeFigures

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def __str__(self) -> str:
        return (
            f"{self.clients} clients, {self.reports} reports for each\n"
            f"words      {self.words}\n"
            f"previews   {self.previews}"
        )


def run(house: House, clients: int = CLIENTS, seconds: float = SECONDS) -> ProgressFigures:
    """All clients are in one batch, so each report is told to each of them."""
    gateway = house.gateway()
    key = gateway.key("bench")
    house.agent(gateway, None, "--python", "tests.bench.progress_model:Told", "--devices", "cpu")
    house.wait_for_model(gateway, key, "told")
    return asyncio.run(_measure(gateway, key, clients, seconds))


async def _measure(gateway: Gateway, key: str, clients: int, seconds: float) -> ProgressFigures:
    headers = {
        "authorization": f"Bearer {key}",
        "accept": "text/event-stream",
        "x-trunkline-progress": "1",
    }
    timeout = aiohttp.ClientTimeout(total=seconds + 60.0)
    async with aiohttp.ClientSession(
        gateway.url, headers=headers, timeout=timeout, read_bufsize=2**17
    ) as session:
        await _read(session, 0.5)
        found = await asyncio.gather(*(_read(session, seconds) for _ in range(clients)))
    return ProgressFigures(
        clients,
        max(each.steps for each in found),
        AgeFigures.of([age_s for each in found for age_s in each.words_s]),
        AgeFigures.of([age_s for each in found for age_s in each.previews_s]),
    )


@dataclass(slots=True)
class _Read:
    """By one client."""

    words_s: list[float] = field(default_factory=list)
    """Ages."""
    previews_s: list[float] = field(default_factory=list)
    steps: int = 0
    """How often the model reported."""
    _known: str = ""

    def take(self, told: dict[str, Any], now_ns: int) -> None:
        """Words that come again with their preview count once."""
        if told["text"] != self._known:
            self._known = told["text"]
            self.words_s.append((now_ns - int(self._known)) / 1e9)
        if "preview" in told:
            made_ns = int(b64decode(told["preview"]["data"])[PREVIEW_BYTES:])
            self.previews_s.append((now_ns - made_ns) / 1e9)


async def _read(session: aiohttp.ClientSession, seconds: float) -> _Read:
    found = _Read()
    async with session.post("/engines/told/predict", data=json.dumps(seconds).encode()) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            now_ns = time.monotonic_ns()
            if line.startswith(_MARK):
                found.take(json.loads(line.removeprefix(_MARK)), now_ns)
            elif line.startswith(b"data: {"):
                found.steps = json.loads(line.removeprefix(b"data: "))["steps"]
    return found
