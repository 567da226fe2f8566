"""Looks for engines on the usual local ports, and keeps looking."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from agent.backends.base import EngineError
from agent.backends.engine_client import EngineClient
from agent.backends.engine_kind import GENERIC, USUAL_PORTS, EngineKind, kind_of
from agent.backends.engine_models import read_models
from agent.backends.settings import EngineSettings, EngineTimeouts

log = structlog.get_logger("agent.finder")

LOOK_S = 3.0
"""How often the ports are tried. A refused connection on loopback costs some 100 µs."""

PROBE_S = 2.0

Found = Callable[[str, str], Awaitable[None]]
"""Called with an engine's URL and a name for it, each different."""


class Finder:
    """Asks each of ``ports`` of this host for its models; whoever has a list is an engine. Once found, it is
    its backend that watches it, whether it goes or stays."""

    def __init__(
        self,
        found: Found,
        ports: Iterable[int] = USUAL_PORTS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._found = found
        self._ports = tuple(ports)
        self._sleep = sleep
        self._names: dict[int, str] = {}

    async def run(self) -> None:
        """Runs until cancelled, or until there is an engine at every port."""
        await self.look()
        if not self._names:
            log.info("no engine found yet, looking on", ports=list(self._ports))
        while len(self._names) < len(self._ports):
            await self._sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """One round."""
        ports = [port for port in self._ports if port not in self._names]
        kinds = await asyncio.gather(*(kind_at(_url(port)) for port in ports))
        for port, kind in zip(ports, kinds, strict=True):
            if kind is not None:
                self._names[port] = self._name(kind, port)
                await self._found(_url(port), self._names[port])

    def _name(self, kind: EngineKind, port: int) -> str:
        name = "engine" if kind is GENERIC else kind.name
        return name if name not in self._names.values() else f"{name}-{port}"


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


async def kind_at(url: str) -> EngineKind | None:
    """What kind of engine is at ``url``, as far as its list of models shows; None when there is no such
    list."""
    settings = EngineSettings(url=url, timeouts=EngineTimeouts(connect_s=PROBE_S, probe_s=PROBE_S))
    client = EngineClient(settings)
    try:
        answer = await client.ask("/v1/models")
    except EngineError:
        return None
    finally:
        await client.close()
    models = read_models(answer.json()) if answer.status == 200 else None
    if models is None:
        return None
    return kind_of(models[0].owner if models else "", None)
