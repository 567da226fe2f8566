"""Looks for engines on the usual local ports, and keeps looking."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from agent.engines.backend import BackendError, BackendUnreachable
from agent.engines.http.engine_client import EngineClient, SmallResponse
from agent.engines.http.kind import GENERIC, USUAL_PORTS, EngineKind, kind_of
from agent.engines.http.models import read_models
from agent.engines.settings import EngineSettings, EngineTimeouts

log = structlog.get_logger("agent.engines.finder")

LOOK_S = 3.0
"""How often the ports are tried. A refused connection on loopback costs some 100 µs."""

CONNECT_S = 2.0

PROBE_S = 60.0
"""How long a server may take to list its models. Long, because it is asked once: some engines answer no
question while they generate."""

MOST_ROUNDS = 20
"""Most rounds between two questions to a server that says it will be ready later."""

NO_ENGINE = (
    f"no engine is found on the usual local ports ({', '.join(map(str, USUAL_PORTS))}): start one, or name "
    "one with --engine URL or --torch DIR"
)

Found = Callable[[str, str], Awaitable[None]]
"""Called with an engine's URL and a name for it, each different."""


class FoundEngine(Enum):
    """What was seen at a port where no engine is found."""

    NOBODY = auto()
    """Nothing accepts connections."""
    LATER = auto()
    """A server that answers 503, as an engine does that loads its model."""
    BYSTANDER = auto()
    """Some other server, which is not asked again for as long as it listens."""


@dataclass(slots=True)
class _Port:
    number: int
    seen: FoundEngine = FoundEngine.NOBODY
    later: int = 0
    """How often in a row it was to be asked later."""
    pause: int = 0
    """Rounds left until it is asked again."""
    name: str | None = None
    """Of the engine that was found there."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.number}"


class Finder:
    """Asks each of ``ports`` of this host for its models; whoever has a list is an engine. Once found, it is
    its backend that watches it, whether it goes or stays.

    A server that is no engine is sent one request and no more: after that it is only connected to, to see
    whether it still listens. Another one at its port is asked anew.
    """

    def __init__(
        self,
        found: Found,
        ports: Iterable[int] = USUAL_PORTS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._found = found
        self._ports = tuple(_Port(port) for port in ports)
        self._sleep = sleep

    async def run(self) -> None:
        """Runs until cancelled, or until there is an engine at every port."""
        async with asyncio.TaskGroup() as tasks:
            looks = [tasks.create_task(self._look_at(port)) for port in self._ports]
            if looks:
                await asyncio.wait(looks, timeout=LOOK_S)
            done = [look.done() for look in looks]
            for port, look, over in zip(self._ports, looks, done, strict=True):
                if over:
                    await self._take(port, look.result())
            if not any(port.name for port in self._ports):
                log.info("no engine found yet, looking on", ports=[port.number for port in self._ports])
            for port, look, over in zip(self._ports, looks, done, strict=True):
                tasks.create_task(self._until_found(port, None if over else look))

    async def look(self) -> None:
        """One round."""
        kinds = await asyncio.gather(*(self._look_at(port) for port in self._ports))
        for port, kind in zip(self._ports, kinds, strict=True):
            await self._take(port, kind)

    async def _until_found(self, port: _Port, begun: "asyncio.Task[EngineKind | None] | None") -> None:
        if begun is not None:
            await self._take(port, await begun)
        while port.name is None:
            await self._sleep(LOOK_S)
            await self._take(port, await self._look_at(port))

    async def _look_at(self, port: _Port) -> EngineKind | None:
        """The kind of the engine that has appeared there, None if none has."""
        if port.name is not None:
            return None
        if port.seen is FoundEngine.BYSTANDER:
            port.seen = FoundEngine.BYSTANDER if await listens(port.number) else FoundEngine.NOBODY
            return None
        if port.pause:
            port.pause -= 1
            return None
        return await self._ask(port)

    async def _ask(self, port: _Port) -> EngineKind | None:
        found = await kind_at(port.url)
        if isinstance(found, EngineKind):
            return found
        port.seen = found
        port.later = port.later + 1 if found is FoundEngine.LATER else 0
        port.pause = min(MOST_ROUNDS, 2**port.later - 2) if port.later else 0
        if found is FoundEngine.BYSTANDER:
            log.info("a server lists no models, so it is left alone", port=port.number)
        return None

    async def _take(self, port: _Port, kind: EngineKind | None) -> None:
        """Those that are found at once are told of in the order of their ports."""
        if kind is not None:
            port.name = _name(kind, port.number)
            await self._found(port.url, port.name)


def _name(kind: EngineKind, port: int) -> str:
    """The same each time, whichever engines are found and in which order."""
    return f"{'engine' if kind is GENERIC else kind.name}-{port}"


async def kind_at(url: str) -> EngineKind | FoundEngine:
    """What kind of engine is at ``url``, as far as its list of models shows, or what is there instead. Sends
    one request."""
    settings = EngineSettings(url=url, timeouts=EngineTimeouts(connect_s=CONNECT_S, probe_s=PROBE_S))
    client = EngineClient(settings)
    try:
        answer = await client.ask("/v1/models")
    except BackendUnreachable:
        return FoundEngine.NOBODY
    except BackendError:
        return FoundEngine.BYSTANDER
    finally:
        await client.close()
    return _kind_of(answer)


def _kind_of(answer: SmallResponse) -> EngineKind | FoundEngine:
    models = read_models(answer.json()) if answer.status == 200 else None
    if models is None:
        return FoundEngine.LATER if answer.status == 503 else FoundEngine.BYSTANDER
    return kind_of(models[0].owner if models else "", None)


async def listens(port: int) -> bool:
    """Whether anybody accepts connections at ``port`` of this host. Nothing is sent."""
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except TimeoutError:
        return True  # its backlog is full
    except OSError:
        return False
    writer.close()
    return True
