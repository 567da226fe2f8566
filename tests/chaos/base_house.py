"""What the processes of every run have in common: engines, logs, a way to start and to end."""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.tools.quickstart.processes import Child
from tests.chaos.town import Post
from tests.support.forks import child
from tests.support.processes import fetch
from tests.support.scripted_engine import Trouble

START_S = 120.0


@dataclass(slots=True)
class EngineProcess:
    """A scripted engine; ``control`` is where it takes orders whatever its state."""

    child: Child
    url: str
    control: str

    def suffer(self, trouble: Trouble) -> None:
        fetch(f"{self.control}/_script", body={"trouble": trouble.value})

    def running(self) -> int:
        """Requests whose answer has not ended."""
        return int(fetch(f"{self.control}/_stats")["running"])


class BaseHouse:
    """Starts everything and ends it. Use as an async context manager."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.engines: dict[str, EngineProcess] = {}
        self.starts: dict[str, int] = {}
        """How often each process was started."""
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        """Also of what has not started."""
        raise NotImplementedError

    def _child(self, name: str, *arguments: str, environment: dict[str, str] | None = None) -> Child:
        count = self.starts[name] = self.starts.get(name, 0) + 1
        return child(name, arguments, self.directory / f"{name}.{count}.log", environment)

    def _await_engine(self, post: Post) -> None:
        engine = self.engines[post.name]
        deadline_s = time.monotonic() + START_S
        while "control " not in (said := engine.child.log.read_text()):
            engine.child.check()
            assert time.monotonic() < deadline_s, f"the engine of {post.name} does not start"
            time.sleep(0.02)
        words = said.split()
        engine.url, engine.control = words[words.index("listening") + 1], words[words.index("control") + 1]


def samples(metrics_page: str) -> dict[str, float]:
    """The samples of a page in the Prometheus text format, by name with labels."""
    lines = [line for line in metrics_page.splitlines() if line[:1] not in ("", "#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
