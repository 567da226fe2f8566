"""Where a peer stands: a directory, processes that end with it, an engine behind it, a core to itself."""

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.tools.quickstart.processes import Child
from tests.bench.peers.machine import Cores, pinned
from tests.bench.peers.tools import Tools
from tests.support.processes import House

_UP_S = 20.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Peers are started here, on their core."""

    house: House
    tools: Tools
    cores: Cores
    engine_port: int

    @property
    def directory(self) -> Path:
        return self.house.directory

    def execute(self, name: str, *command: str, environment: Mapping[str, str] | None = None) -> Child:
        """Start a program."""
        arguments = ("tests.chaos.peer.execute", *command)
        return self.house.children.start(name, *arguments, environment=environment)

    def at_far_end(self) -> contextlib.AbstractContextManager[None]:
        """What is started meanwhile runs where the far end of a tunnel does."""
        return pinned(self.cores.far)

    def write(self, name: str, text: str) -> str:
        """Write a file; its path."""
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def until_listening(self, port: int, timeout_s: float = _UP_S) -> None:
        """Return once somebody takes connections there. Raises ProcessEnded if that does not come."""

        def listening() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        self.house.children.wait_until(listening, f"port {port} takes connections", timeout_s)

    def until_right(self, running: "Running", timeout_s: float) -> None:
        """Return once plain and streamed chats are answered. Raises RuntimeError if they are not in time."""
        deadline_s = time.monotonic() + timeout_s
        for kind in ("unary", "stream"):
            while True:
                seen = self.tools.ask(
                    kind, *running.target, "-c", "1", "-n", "3", "-q", "1", "-w", "0", "-d", "5"
                )
                if seen["right"]:
                    break
                self.house.children.check()
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"no right answer: {seen['last_status']} {seen['error_text']}")
                time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class Running:
    """A peer that is up."""

    port: int
    roles: Mapping[str, int]
    """Role → its first process."""
    key: str = "none"
    fields: tuple[str, ...] = ()
    """What its requests need beside the usual, each ``name: value``."""

    @property
    def target(self) -> tuple[str, ...]:
        """Where the load is to go."""
        extra = (part for each in self.fields for part in ("-H", each))
        return ("-P", str(self.port), "-a", self.key, *extra)


def _nothing() -> str | None:
    return None


def _no_version() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Peer:
    """One that can be put into the place between load and engine."""

    name: str
    start: Callable[[Stage], Running]
    missing: Callable[[], str | None] = _nothing
    """Why it cannot be run here, and what to do; None if it can."""
    version: Callable[[], str] = _no_version
    start_s: float = 60.0
    without: frozenset[str] = field(default_factory=frozenset)
    """Workloads that it does not pass on at all."""

    def bring_up(self, stage: Stage) -> Running:
        """Start it and wait until it answers. Raises ProcessEnded or RuntimeError."""
        with pinned(stage.cores.peers):
            running = self.start(stage)
        stage.until_right(running, self.start_s)
        return running
