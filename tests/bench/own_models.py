"""A model of one's own beside LitServe: the same model, the same batches, the same load, one after the other.

First the load is closed: so many connections, each of which sends its next request when it has the answer to
the one before. That gives what a server can do, and its CPU time for a request. Then requests come at random
times (Poisson) at a rate that is the same for both, half of what the slower one was found to do before the
first round; times count from the moment at which a request was meant to be sent. That gives latencies at
equal load.

Both servers are asked directly, over TCP on loopback, as LitServe has no gateway. They are set up as they
come, with one process that computes, on one core where there are two, and the load has the other. Each is
started anew in every round, of which every second goes in the opposite order, and ratios are made round by
round, so that a machine that becomes slower meanwhile favours nobody. CPU time is that of all processes of
the server.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median

from shared.process.ports import free_port
from tests.bench.dense_model import WIDTH
from tests.bench.figures import cpu_s, percentile, ratio_of_rounds
from tests.bench.peers.machine import cores, family, pinned
from tests.bench.peers.tools import CACHE

_ROOT = Path(__file__).parents[2]
CONNECTIONS = 64
SECONDS = 10.0
ROUNDS = 4
OURS, PEER = "ours", "litserve"
_SHARE = 0.5
"""Of what the slower one can do: the rate at which latencies are compared."""
_START_S = 60.0
_IDLE_S = 2.0
"""For so long a connection is used again; uvicorn's default closes one after 5 s."""
_KEY = "bench"
_BODY = json.dumps({"input": [round(i / WIDTH, 4) for i in range(WIDTH)]}).encode()


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """One server in one round."""

    server: str
    round: int
    requests: int
    """That were answered while the load was closed."""
    per_s: float
    cpu_ms: float
    """For a request."""
    paced_per_s: float
    paced_p50_ms: float
    paced_p99_ms: float
    paced_cpu_ms: float
    """At the rate that is the same for both."""


@dataclass(frozen=True, slots=True)
class OwnModelFigures:
    rounds: tuple[ServerFigures, ...]
    connections: int
    left_out: str = ""
    """Why there is no peer."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def values(self, server: str, member: str) -> list[float]:
        """Of each round."""
        return [getattr(each, member) for each in self.rounds if each.server == server]

    def __str__(self) -> str:
        columns = {
            f"{self.connections} connections: requests/s": "per_s",
            "CPU ms a request": "cpu_ms",
            f"{self.rounds[0].paced_per_s:.0f} requests/s: p50 ms": "paced_p50_ms",
            "p99 ms": "paced_p99_ms",
            "CPU ms a request at that rate": "paced_cpu_ms",
        }
        lines = []
        for title, member in columns.items():
            ours, theirs = self.values(OURS, member), self.values(PEER, member)
            said = f"{title:36s} ours {median(ours):9.3f}"
            if theirs:
                said += f"   LitServe {median(theirs):9.3f}   ours × {ratio_of_rounds(ours, theirs)}"
            lines.append(said)
        return "\n".join([*lines, f"LitServe: {self.left_out}"] if self.left_out else lines)


def litserve() -> str | None:
    """The interpreter that has LitServe: one of its own below ``tests/.cache``, else ours."""
    own = CACHE / "peers" / "litserve" / "bin" / "python"
    if own.exists():
        return str(own)
    return sys.executable if find_spec("litserve") is not None else None


def run(connections: int = CONNECTIONS, seconds: float = SECONDS, rounds: int = ROUNDS) -> OwnModelFigures:
    """Both servers in every round; only ours where LitServe is not installed."""
    peer = litserve()
    servers = [OURS] if peer is None else [OURS, PEER]
    most = [measure(name, 0, peer or "", connections, seconds / 3, 0.0).per_s for name in servers]
    found = [
        measure(name, number, peer or "", connections, seconds, _SHARE * min(most))
        for number in range(rounds)
        for name in (servers[::-1] if number % 2 else servers)
    ]
    home = "tests/.cache/peers/litserve"
    advice = f"not installed; python3 -m venv {home} && {home}/bin/pip install litserve numpy"
    return OwnModelFigures(tuple(found), connections, "" if peer else advice)


def measure(
    name: str, number: int, peer: str, connections: int, seconds: float, paced_per_s: float
) -> ServerFigures:
    """One server in the round of that number: started, warmed up, loaded in both ways, ended. A rate of 0
    leaves the second one out."""
    own = cores()
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as scratch, ExitStack() as stack:
        port = free_port()
        ours = (sys.executable, "-P", "-m", "agent.serve", "tests.bench.dense_ours:Dense", "--devices", "cpu")
        command = (
            (*ours, "--scratch", scratch, "--port", str(port))
            if name == OURS
            else (peer, "-P", "-m", "tests.bench.dense_litserve", str(port))
        )
        with pinned(own.peers):
            pid = stack.enter_context(started(command, _environment()))
        stack.enter_context(pinned(own.load))
        asyncio.run(_until_ready(port))
        asyncio.run(_load(port, connections, min(1.0, seconds)))
        closed = _Loaded.of(pid, _load(port, connections, seconds))
        paced = _Loaded.of(pid, _paced(port, paced_per_s, seconds)) if paced_per_s else closed
    return ServerFigures(
        name,
        number,
        len(closed.times_s),
        len(closed.times_s) / closed.took_s,
        closed.cpu_ms,
        paced_per_s,
        1000 * percentile(paced.times_s, 0.5),
        1000 * percentile(paced.times_s, 0.99),
        paced.cpu_ms,
    )


@dataclass(frozen=True, slots=True)
class _Loaded:
    times_s: list[float]
    took_s: float
    cpu_ms: float
    """For a request."""

    @classmethod
    def of(cls, pid: int, load: Coroutine[None, None, list[float]]) -> "_Loaded":
        before_s, began_s = sum(map(cpu_s, family(pid))), time.monotonic()
        times_s = asyncio.run(load)
        took_s = time.monotonic() - began_s
        used_s = sum(map(cpu_s, family(pid))) - before_s
        return cls(times_s, took_s, 1000 * used_s / len(times_s))


def _environment() -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return os.environ | threads | {"TRUNKLINE_ENGINE_KEY": _KEY, "PYTHONPATH": str(_ROOT)}


@contextmanager
def started(command: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[int]:
    """The server's process; its whole family is ended afterwards."""
    process = subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process.pid
    finally:
        left = family(process.pid)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()


async def _until_ready(port: int) -> None:
    async with asyncio.timeout(_START_S):
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    return await _one(reader, writer)
                finally:
                    writer.close()
            await asyncio.sleep(0.1)


async def _load(port: int, connections: int, seconds: float) -> list[float]:
    """How long each request took, in seconds."""
    times: list[float] = []
    until_s = time.monotonic() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while (began_s := time.monotonic()) < until_s:
                await _one(reader, writer)
                times.append(time.monotonic() - began_s)
        finally:
            writer.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(client())
    return times


async def _paced(port: int, per_s: float, seconds: float) -> list[float]:
    """How long after it was due each request was answered, in seconds."""
    random, times, idle = Random(7), list[float](), deque[tuple[float, _Connection]]()

    async def ask(due_s: float) -> None:
        while idle and idle[0][0] < time.monotonic() - _IDLE_S:
            idle.popleft()[1][1].close()
        connection = idle.pop()[1] if idle else await asyncio.open_connection("127.0.0.1", port)
        await _one(*connection)
        times.append(time.monotonic() - due_s)
        idle.append((time.monotonic(), connection))

    due_s = time.monotonic()
    ends_s = due_s + seconds
    async with asyncio.TaskGroup() as tasks:
        while (due_s := due_s + random.expovariate(per_s)) < ends_s:
            await asyncio.sleep(due_s - time.monotonic())
            tasks.create_task(ask(due_s))
    for _, (_, writer) in idle:
        writer.close()
    return times


_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_REQUEST = (
    b"POST /predict HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b" % (_KEY.encode(), len(_BODY), _BODY)
)


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request. Raises ValueError for any answer but a good one."""
    writer.write(_REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
    body = await reader.readexactly(length)
    if b" 200 " not in lines[0] or not body.startswith(b'{"output"'):
        raise ValueError(f"{lines[0]!r}: {body[:100]!r}")
