"""Looks for engines on the usual local ports, and keeps looking."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from agent.engines.backend import BackendError, BackendUnreachable
from agent.engines.http.engine_client import EngineClient, SmallResponse
from agent.engines.http.kind import COMFYUI, GENERIC, USUAL_PORTS, EngineKind, kind_of
from agent.engines.http.models import read_models
from agent.engines.settings import EngineSettings, EngineTimeouts

log = structlog.get_logger("agent.engines.finder")

LOOK_S = 3.0
"""How often the ports are tried. A refused connection on loopback costs some 100 µs."""

STATS_PATH = "/system_stats"
"""Where ComfyUI tells its version."""

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
"""Called with an engine's URL and a name for it, each different. What stands before the URL, with a colon,
is the protocol that it speaks, as in the agent's file; without it that is OpenAI's."""


class NoEngine(Enum):
    """What is at a port where no engine is found."""

    CLOSED = auto()
    """Nothing accepts connections."""
    LOADING = auto()
    """A server that answers 503, as an engine does that loads its model."""
    OTHER = auto()
    """Some other server, which is not asked again for as long as it listens."""


@dataclass(slots=True, eq=False)
class _Port:
    number: int
    seen: NoEngine = NoEngine.CLOSED
    loading: int = 0
    """How often in a row it answered that it is loading."""
    pause: int = 0
    """Rounds left until it is asked again."""
    name: str | None = None
    """The name of the engine that was found there."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.number}"


class Finder:
    """Asks each of ``ports`` of this host for its models; whoever has a list is an engine. Where ComfyUI is
    usual, it asks for ComfyUI's facts instead. Once found, it is
    its backend that watches it, whether it goes or stays.

    A server that is no engine is sent one request and no more: after that it is only connected to, to see
    whether it still listens. Another one at its port is asked anew.
    """

    def __init__(
        self,
        found: Found,
        ports: Iterable[int] = USUAL_PORTS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        kinds: Mapping[int, EngineKind] = USUAL_PORTS,
    ) -> None:
        """``kinds`` is what is usual at a port."""
        self._kinds = kinds
        self._found = found
        self._ports = tuple(_Port(port) for port in ports)
        self._sleep = sleep

    async def run(self) -> None:
        """Runs until cancelled, or until there is an engine at every port."""
        async with asyncio.TaskGroup() as tasks:
            looks = {port: tasks.create_task(self._look_at(port)) for port in self._ports}
            if looks:
                await asyncio.wait(looks.values(), timeout=LOOK_S)
            for port, look in looks.items():
                if look.done():
                    await self._take(port, look.result())
            if not any(port.name for port in self._ports):
                log.info("no engine found yet, looking on", ports=[port.number for port in self._ports])
            for port, look in looks.items():
                tasks.create_task(self._until_found(port, look))

    async def look(self) -> None:
        """One round."""
        kinds = await asyncio.gather(*(self._look_at(port) for port in self._ports))
        for port, kind in zip(self._ports, kinds, strict=True):
            await self._take(port, kind)

    async def _until_found(self, port: _Port, look: "asyncio.Task[EngineKind | None]") -> None:
        await self._take(port, await look)
        while port.name is None:
            await self._sleep(LOOK_S)
            await self._take(port, await self._look_at(port))

    async def _look_at(self, port: _Port) -> EngineKind | None:
        """The kind of the engine that has appeared there, None if none has."""
        if port.name is not None:
            return None
        if port.seen is NoEngine.OTHER:
            port.seen = NoEngine.OTHER if await listens(port.number) else NoEngine.CLOSED
            return None
        if port.pause:
            port.pause -= 1
            return None
        is_comfyui = self._kinds.get(port.number) is COMFYUI
        found = await (comfyui_at(port.url) if is_comfyui else kind_at(port.url))
        if isinstance(found, EngineKind):
            return found
        port.seen = found
        port.loading = port.loading + 1 if found is NoEngine.LOADING else 0
        port.pause = min(MOST_ROUNDS, 2**port.loading - 2) if port.loading else 0
        if found is NoEngine.OTHER:
            log.info("a server lists no models, so it is left alone", port=port.number)
        return None

    async def _take(self, port: _Port, kind: EngineKind | None) -> None:
        """Use an engine that was found. Its name is the same each time, whichever engines are found and in
        which order."""
        if kind is not None and port.name is None:
            port.name = f"{'engine' if kind is GENERIC else kind.name}-{port.number}"
            await self._found(f"comfyui:{port.url}" if kind is COMFYUI else port.url, port.name)


async def kind_at(url: str) -> EngineKind | NoEngine:
    """What kind of engine is at ``url``, as far as its list of models shows, or what is there instead. Sends
    one request."""
    answer = await _answer(url, "/v1/models")
    if isinstance(answer, NoEngine):
        return answer
    models = read_models(answer.json()) if answer.status == 200 else None
    if models is None:
        return NoEngine.LOADING if answer.status == 503 else NoEngine.OTHER
    return kind_of(models[0].owner if models else "", None)


async def comfyui_at(url: str) -> EngineKind | NoEngine:
    """Whether ComfyUI is at ``url``, or what is there instead. Sends one request."""
    answer = await _answer(url, STATS_PATH)
    if isinstance(answer, NoEngine):
        return answer
    said = answer.json() if answer.status == 200 else None
    system = said.get("system") if isinstance(said, dict) else None
    if isinstance(system, dict) and "comfyui_version" in system:
        return COMFYUI
    return NoEngine.LOADING if answer.status == 503 else NoEngine.OTHER


async def _answer(url: str, path: str) -> SmallResponse | NoEngine:
    settings = EngineSettings(url=url, timeouts=EngineTimeouts(connect_s=CONNECT_S, probe_s=PROBE_S))
    client = EngineClient(settings)
    try:
        return await client.ask(path)
    except BackendUnreachable:
        return NoEngine.CLOSED
    except BackendError:
        return NoEngine.OTHER
    finally:
        await client.close()


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
