"""What a gateway holds for each tunnel, each idle client, each open stream.

Steps, one after the other in one gateway process: nobody; ``agents`` tunnels; ``clients`` more connections
that have asked once and stay; those gone, ``streams`` paced streams at once. Told is what each step added.
"""

import gc
import json
import socket
import time
from dataclasses import asdict, dataclass

from gateway.tools.quickstart.processes import Child
from tests.bench import crowd
from tests.bench.figures import mebibytes
from tests.support.leaks import rss_bytes
from tests.support.processes import House

GOAL_BYTES = 2**30
_SPARE_FILES = 512
_LONG_S = 3600.0
_LOOK_S = 0.2
_PATIENCE_S = 20.0
_HEALTH = b"GET /healthz HTTP/1.1\r\nhost: bench\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes. The agents' are of all their processes."""

    agents: int
    clients: int
    streams: int
    streams_open: int
    """At once, at most."""
    gateway_empty_bytes: int
    gateway_tunnels_bytes: int
    gateway_clients_bytes: int
    gateway_after_clients_bytes: int
    gateway_streams_bytes: int
    agents_idle_bytes: int
    agents_streams_bytes: int

    @property
    def per_tunnel_bytes(self) -> float:
        return (self.gateway_tunnels_bytes - self.gateway_empty_bytes) / self.agents

    @property
    def per_client_bytes(self) -> float:
        return (self.gateway_clients_bytes - self.gateway_tunnels_bytes) / self.clients

    @property
    def per_stream_bytes(self) -> float:
        return (self.gateway_streams_bytes - self.gateway_after_clients_bytes) / max(1, self.streams_open)

    @property
    def per_agent_stream_bytes(self) -> float:
        return (self.agents_streams_bytes - self.agents_idle_bytes) / max(1, self.streams_open)

    @property
    def met(self) -> bool:
        return self.streams_open >= self.streams and self.gateway_streams_bytes <= GOAL_BYTES

    def __str__(self) -> str:
        streams = f"{self.streams_open} of {self.streams}"
        whole_bytes = self.agents_idle_bytes / self.agents
        lines = [
            f"gateway, nobody there   {mebibytes(self.gateway_empty_bytes)}",
            f"each tunnel             {self.per_tunnel_bytes / 1024:.1f} KiB ({self.agents})",
            f"each idle client        {self.per_client_bytes / 1024:.1f} KiB ({self.clients})",
            f"each open stream        {self.per_stream_bytes / 1024:.1f} KiB ({streams})",
            f"  of the agent          {self.per_agent_stream_bytes / 1024:.1f} KiB",
            f"each whole agent        {whole_bytes / 1024:.0f} KiB, many in a process",
            f"gateway with all streams and tunnels: {mebibytes(self.gateway_streams_bytes)}, "
            f"goal {mebibytes(GOAL_BYTES)}: {'met' if self.met else 'MISSED'}",
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        derived = {
            "per_tunnel_bytes": self.per_tunnel_bytes,
            "per_client_bytes": self.per_client_bytes,
            "per_stream_bytes": self.per_stream_bytes,
            "per_agent_stream_bytes": self.per_agent_stream_bytes,
        }
        return json.dumps(asdict(self) | derived | {"met": self.met}, indent=1)


def missing(agents: int, clients: int, streams: int) -> str | None:
    """Why it cannot be run here; None if it can."""
    return crowd.may_open(max(streams, clients) + agents + _SPARE_FILES)


def run(
    house: House,
    agents: int,
    clients: int,
    streams: int,
    *,
    ramp_per_s: float = 200.0,
    interval_s: float = 5.0,
    settle_s: float = 3.0,
) -> Memory:
    """All the steps. Streams begin ``ramp_per_s`` a second and have a token every ``interval_s``; memory is
    read after ``settle_s`` of quiet. The caller asked :func:`missing` before."""
    gateway = crowd.start_gateway(house)
    key = gateway.key("bench")
    empty = settled(gateway.child, settle_s)
    slots = min(1024, streams // agents * 5 // 4 + 8)
    site = crowd.start_agents(house, gateway, agents, slots, key)
    tunnels = settled(gateway.child, settle_s)
    with_clients = _with_clients(gateway.child, gateway.port, clients, settle_s)
    after = settled(gateway.child, settle_s)
    idle = sum(map(rss_bytes, site.agents_pids))
    site.engine.direct(interval_us=int(interval_s * 1e6))
    pace = ("-g", f"{streams / ramp_per_s:g}", "-w", "0", "-d", f"{_LONG_S:g}")
    with site.loaded("stream", "-c", str(streams), "-n", "10000000", *pace):
        open_now = _until_open(site, streams)
        time.sleep(interval_s)
        with_streams = settled(gateway.child, settle_s)
        agents_busy = sum(map(rss_bytes, site.agents_pids))
    return Memory(
        agents=agents,
        clients=clients,
        streams=streams,
        streams_open=open_now,
        gateway_empty_bytes=empty,
        gateway_tunnels_bytes=tunnels,
        gateway_clients_bytes=with_clients,
        gateway_after_clients_bytes=after,
        gateway_streams_bytes=with_streams,
        agents_idle_bytes=idle,
        agents_streams_bytes=agents_busy,
    )


def _until_open(site: crowd.Crowd, streams: int) -> int:
    """How many are open once all are, or once no more have come for a while."""
    most, at_s = 0, time.monotonic()
    while most < streams and time.monotonic() < at_s + _PATIENCE_S:
        time.sleep(_LOOK_S)
        now = site.active()
        if now > most:
            most, at_s = now, time.monotonic()
    return most


def settled(child: Child, settle_s: float) -> int:
    """Its resident memory after a moment of quiet."""
    time.sleep(settle_s)
    return rss_bytes(child.pid)


def _with_clients(child: Child, port: int, clients: int, settle_s: float) -> int:
    """Its resident memory while so many clients are connected and ask nothing any more."""
    opened = []
    try:
        for _ in range(clients):
            opened.append(socket.create_connection(("127.0.0.1", port), 10.0))
            opened[-1].sendall(_HEALTH)
            opened[-1].recv(4096)
        return settled(child, settle_s)
    finally:
        for each in opened:
            each.close()
        gc.collect()
