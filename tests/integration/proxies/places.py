"""A gateway behind each of the proxies, and an agent whose tunnel goes through it."""

import asyncio
import os
import ssl
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from gateway.domain.scopes import AdminRole
from shared.process.ports import free_port
from tests.integration.workers import FreshConnections
from tests.support.front_proxies import FrontProxy, ProxyKind, front_proxy
from tests.support.processes import Engine, Gateway, House, until

FULL = os.environ.get("TRUNKLINE_TEST_PROXIES") == "full"
MIB = 2**20
MODEL = "scripted"
SLASHED = "org/scripted"
BODY_BYTES = 2 * MIB
"""The gateway's limit for a body that is no file."""
ELSEWHERE = "127.0.0.5"
"""Where a client comes from that is none of the proxy's own networks."""
THINKS_S = 0.1
"""Until an engine's first token here. Traefik now and then cuts an answer to a POST that begins as soon as
the body's last byte has been sent: docs/proxies.md#what-was-found."""
SETTINGS = {
    "TRUNKLINE_GATEWAY_BEHIND_TLS_TERMINATOR": "true",
    "TRUNKLINE_GATEWAY_TRUSTED_PROXIES": '["127.0.0.1/32"]',
    "TRUNKLINE_GATEWAY_HTTP__BODY_BYTES": str(BODY_BYTES),
    "TRUNKLINE_GATEWAY_HTTP__COMMENT_S": "1",
}


@dataclass(frozen=True, slots=True)
class Gateways:
    """What all proxies are in front of."""

    house: House
    gateway: Gateway
    engine: Engine
    key: str


@dataclass(frozen=True, slots=True)
class Place:
    """One proxy, and what is behind it."""

    behind: Gateways
    proxy: FrontProxy

    @property
    def url(self) -> str:
        return self.proxy.url

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.behind.key}"}

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.proxy.at.certificate)

    @asynccontextmanager
    async def client(
        self, source: str = "127.0.0.1", *, leaves_at_once: bool = False
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """A client that comes from that address. ``leaves_at_once``: each request has a connection of its
        own, which is closed with it; else a connection is closed in TLS's order first, which takes up to 30 s
        where the proxy does not answer."""
        kind = FreshConnections if leaves_at_once else aiohttp.TCPConnector
        connector = kind(ssl=self.trust(), local_addr=(source, 0), limit=0)
        timeout = aiohttp.ClientTimeout(600)
        async with aiohttp.ClientSession(
            self.url, headers=self.headers, connector=connector, timeout=timeout
        ) as session:
            yield session


def gateways(directory: Path) -> Iterator[Gateways]:
    """Until the generator is ended."""
    with House(directory) as house:
        gateway = house.gateway(environment=SETTINGS)
        engine = house.engine("--model", MODEL, "--model", SLASHED)
        yield Gateways(house, gateway, engine, gateway.key("tests", role=AdminRole.VIEWER))


@contextmanager
def place(
    behind: Gateways, kind: ProxyKind, directory: Path, scaled: Mapping[str, str] | None = None
) -> Iterator[Place]:
    """The proxy runs, and an agent serves through it; of the two gateways in its configuration one is away.
    ``scaled`` are replacements of times."""
    house, gateway = behind.house, behind.gateway
    with front_proxy(kind, directory, (gateway.port, free_port()), scaled) as proxy:
        found = Place(behind, proxy)
        name = f"{directory.name}-agent"
        arguments = ("--ca-file", str(proxy.at.certificate), "--slots", "16")
        until("the proxy passes requests on", lambda: proxy_answers(proxy), 60.0)
        agent = house.agent(gateway, behind.engine.url, *arguments, name=name, dial=proxy.url)
        try:
            house.wait_for_model(gateway, behind.key, MODEL)
            yield found
        finally:
            house.children.stop(agent)


def proxy_answers(proxy: FrontProxy) -> bool:
    """Twice, for of two gateways one may be away."""
    context = ssl.create_default_context(cafile=proxy.at.certificate)
    try:
        for _ in range(2):
            with urllib.request.urlopen(f"{proxy.url}/readyz", timeout=10, context=context):
                pass
    except OSError:
        return False
    return True


async def until_true(what: str, condition: Callable[[], object], seconds: float = 30.0) -> None:
    await asyncio.to_thread(until, what, condition, seconds)


def stored_bytes(gateway: Gateway) -> int:
    """Of all files in its state."""
    found = 0
    for path in gateway.state.rglob("*"):
        try:
            found += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return found


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had of its own since :func:`forget_peak`; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
