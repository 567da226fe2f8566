"""A model of one's own beside LitServe: the same model, the same batches, the same load, one after the other.

The load is closed: so many connections, each of which sends its next request when it has the answer to the
one before. Both servers are asked directly, over TCP on loopback, as LitServe has no gateway. Each has two
rounds, ours first and last, so that a machine that becomes slower meanwhile favours nobody. CPU time is that
of all processes of the server, for a request.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from shared.process.ports import free_port
from tests.bench.dense_model import WIDTH
from tests.bench.figures import cpu_s
from tests.bench.peers.machine import family
from tests.bench.peers.tools import CACHE

_ROOT = Path(__file__).parents[2]
CONNECTIONS = 64
SECONDS = 10.0
_START_S = 60.0
_KEY = "bench"
_BODY = json.dumps({"input": [round(i / WIDTH, 4) for i in range(WIDTH)]}).encode()


@dataclass(frozen=True, slots=True)
class ServerFigures:
    server: str
    requests: int
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """Of all the server's processes, for a request."""

    def __str__(self) -> str:
        return (
            f"{self.server:10s} {self.per_s:8.0f}/s   "
            f"p50 {self.p50_ms:7.2f} ms   p99 {self.p99_ms:7.2f} ms   CPU {self.cpu_ms:6.3f} ms a request"
        )


@dataclass(frozen=True, slots=True)
class OwnModelFigures:
    rounds: tuple[ServerFigures, ...]
    connections: int
    left_out: str = ""
    """Why there is no peer."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def __str__(self) -> str:
        lines = [f"{self.connections} connections", *map(str, self.rounds)]
        return "\n".join([*lines, f"LitServe: {self.left_out}"] if self.left_out else lines)


def litserve() -> str | None:
    """The interpreter that has LitServe: one of its own below ``tests/.cache``, else ours."""
    own = CACHE / "peers" / "litserve" / "bin" / "python"
    if own.exists():
        return str(own)
    return sys.executable if find_spec("litserve") is not None else None


def run(connections: int = CONNECTIONS, seconds: float = SECONDS) -> OwnModelFigures:
    """Both servers in turn; only ours where LitServe is not installed."""
    peer = litserve()
    order = ["ours"] if peer is None else ["ours", "litserve", "litserve", "ours"]
    rounds = tuple(measure(name, peer or "", connections, seconds) for name in order)
    home = "tests/.cache/peers/litserve"
    advice = f"not installed; python3 -m venv {home} && {home}/bin/pip install litserve numpy"
    return OwnModelFigures(rounds, connections, "" if peer else advice)


def measure(name: str, peer: str, connections: int, seconds: float) -> ServerFigures:
    """One round: start the server, warm it up, load it, end it."""
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as scratch:
        port = free_port()
        ours = (sys.executable, "-P", "-m", "agent.serve", "tests.bench.dense_ours:Dense", "--devices", "cpu")
        command = (
            (*ours, "--scratch", scratch, "--port", str(port))
            if name == "ours"
            else (peer, "-P", "-m", "tests.bench.dense_litserve", str(port))
        )
        with started(command, _environment()) as pid:
            asyncio.run(_until_ready(port))
            asyncio.run(_load(port, connections, min(1.0, seconds)))
            before_s = sum(map(cpu_s, family(pid)))
            began_s = time.monotonic()
            times = sorted(asyncio.run(_load(port, connections, seconds)))
            took_s = time.monotonic() - began_s
            cpu = sum(map(cpu_s, family(pid))) - before_s
    return ServerFigures(
        name,
        len(times),
        len(times) / took_s,
        1000 * times[len(times) // 2],
        1000 * times[len(times) * 99 // 100],
        1000 * cpu / len(times),
    )


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
