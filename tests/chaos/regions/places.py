"""Where a region runs: in a network namespace of its own, or on loopback behind a proxy.

A namespace has one line to the parent's host. The line is cut by taking it down: what is sent is lost, as
where a cable is cut. Delay and loss come from ``tc netem`` where the kernel has it; else a relay within the
namespace delays what passes, and nothing is lost but by cuts.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from gateway.tools.quickstart.processes import Child, Children
from tests.support.processes import START_S, House
from tests.support.proxy import FaultyProxy, Link

LOSS = "0.5%"
"""Of packets, each way, where netem can lose them."""


class Place(Protocol):
    """One region's hosts."""

    house: House
    """Its processes start there."""
    dial: str
    """The parent's address as seen from there."""

    def cut(self) -> None: ...
    def heal(self) -> None: ...


class _Loopback:
    def __init__(self, house: House, proxy: FaultyProxy) -> None:
        self.house, self.dial, self._proxy = house, proxy.url, proxy

    def cut(self) -> None:
        self._proxy.part()

    def heal(self) -> None:
        self._proxy.heal()


@asynccontextmanager
async def on_loopback(directory: Path, parent_port: int, delay_s: float) -> AsyncIterator[Place]:
    """A region that is ``delay_s`` away, one way."""
    async with FaultyProxy("127.0.0.1", parent_port, Link(delay_s=delay_s)) as proxy:
        with House(directory) as house:
            yield _Loopback(house, proxy)


# --- Namespaces ---


def namespaces_work() -> bool:
    """Whether this machine lets us make them."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"trunkline-{os.getpid()}"
    if _try("ip", "netns", "add", name):
        _try("ip", "netns", "del", name)
        return True
    return False


def netem_works() -> bool:
    """Whether the kernel delays and loses packets."""
    name = f"tle{os.getpid() % 100_000}"
    if shutil.which("tc") is None or not _try("ip", "link", "add", name, "type", "dummy"):
        return False
    works = _try("tc", "qdisc", "add", "dev", name, "root", "netem", "delay", "1ms")
    _try("ip", "link", "del", name)
    return works


class _Namespace:
    def __init__(self, house: House, name: str, line: str, dial: str) -> None:
        self.house, self.dial = house, dial
        self._name, self._line = name, line

    def cut(self) -> None:
        _run("ip", "link", "set", self._line, "down")

    def heal(self) -> None:
        _run("ip", "link", "set", self._line, "up")


class _ThereChild(Child):
    """A process within a namespace."""

    def __init__(
        self,
        namespace: str,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log = name, log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )


@asynccontextmanager
async def in_namespace(
    directory: Path, parent_port: int, delay_s: float, place: int, *, netem: bool
) -> AsyncIterator[Place]:
    """A region that is ``delay_s`` away, one way; ``place`` counts those of this process, up to 63."""
    pid = os.getpid()
    name, line = f"trunkline-{pid}-{place}", f"tl{pid % 100_000}r{place}"
    network = f"169.254.{1 + pid % 254}"
    here, there = f"{network}.{4 * place + 1}", f"{network}.{4 * place + 2}"
    with contextlib.ExitStack() as undo:
        _run("ip", "netns", "add", name)
        undo.callback(_try, "ip", "netns", "del", name)
        _run("ip", "link", "add", line, "type", "veth", "peer", "name", "line0", "netns", name)
        undo.callback(_try, "ip", "link", "del", line)
        _run("ip", "addr", "add", f"{here}/30", "dev", line)
        _run("ip", "link", "set", line, "up")
        inside = ("ip", "-n", name)
        _run(*inside, "addr", "add", f"{there}/30", "dev", "line0")
        _run(*inside, "link", "set", "line0", "up")
        _run(*inside, "link", "set", "lo", "up")
        if netem:
            shape = ("root", "netem", "delay", f"{delay_s * 1000:g}ms", "loss", LOSS)
            _run("tc", "qdisc", "add", "dev", line, *shape)
            _run("tc", "-n", name, "qdisc", "add", "dev", "line0", *shape)
        async with FaultyProxy("127.0.0.1", parent_port, listen_host=here) as gate:
            with House(directory) as house:
                house.children = Children(directory, _maker(name))
                delay = () if netem else ("--delay-ms", f"{delay_s * 1000:g}")
                relay = house.children.start(
                    "relay", "tests.support.proxy", "--target", f"{here}:{gate.port}", *delay
                )
                address = await asyncio.to_thread(house.listening, relay)
                yield _Namespace(house, name, line, f"http://{address}")


def _maker(namespace: str) -> Callable[..., Child]:
    def make(
        name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Child:
        return _ThereChild(namespace, name, arguments, log, environment)

    return make


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip()}")


def _try(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, timeout=START_S, check=False).returncode == 0
