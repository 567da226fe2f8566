"""The backend for every engine with the OpenAI HTTP surface, over TCP or a Unix socket."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog

from agent.backends.base import EngineError, EngineRefused, EngineResponse, RequestBody
from agent.backends.engine_client import EngineClient
from agent.backends.probe import EngineView, Prober
from agent.backends.settings import EngineSettings, EngineTimeouts
from shared.messages import DeploymentState, RequestHead

__all__ = ["EngineSettings", "EngineTimeouts", "OpenAIHTTPBackend"]

log = structlog.get_logger("agent.engine")

GONE_REFRESH_S = 1.0
"""How often an engine that is not there is asked for; a refused connection on this host costs nothing."""

ERROR_REFRESH_S = 0.2
"""After a failed request the engine is looked at at once, but not more often than this."""


class OpenAIHTTPBackend:
    """Implements :class:`agent.backends.base.Backend`.

    One task looks at the engine every ``refresh_s``, more often while it is gone, and at once after a request
    failed. Whatever an engine does not offer (health, metrics, facts) is found out once each time it appears.
    """

    def __init__(self, settings: EngineSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = settings.name
        self._settings = settings
        self._clock = clock
        self._client: EngineClient | None = None
        self._prober: Prober | None = None
        self._view = EngineView()
        self._watch: asyncio.Task[None] | None = None
        self._look = asyncio.Event()
        self._looking = asyncio.Lock()
        self._on_change: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Looks at the engine once, then watches it until :meth:`close`."""
        assert self._watch is None, "started twice"
        self._client = EngineClient(self._settings)
        self._prober = Prober(self._settings, self._client.ask)
        await self.refresh()
        self._watch = asyncio.create_task(self._watch_engine(), name=f"watch {self.name}")

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def deployments(self) -> tuple[DeploymentState, ...]:
        return self._view.deployments

    @property
    def kind(self) -> str:
        """What kind of engine it is found to be: ``vllm``, ``ollama``, …, ``generic``."""
        return self._view.kind.name

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    async def refresh(self) -> None:
        """Look at the engine now, outside the rhythm: after it was seen to start or to fail."""
        assert self._prober is not None, "not started"
        async with self._looking:
            before = self._view
            self._view = await self._prober.look(before)
        if self._view.deployments != before.deployments:
            self._say_change(before)
            self._on_change()

    @asynccontextmanager
    async def _request(self, head: RequestHead, body: RequestBody) -> AsyncIterator[EngineResponse]:
        assert self._client is not None, "not started"
        try:
            async with self._client.request(head, body) as response:
                yield response
        except EngineRefused:
            raise
        except EngineError:
            self._look.set()
            raise

    def request(self, head: RequestHead, body: RequestBody) -> AbstractAsyncContextManager[EngineResponse]:
        return self._request(head, body)

    async def _watch_engine(self) -> None:
        while True:
            gone = self._view.gone
            rest_s = min(self._settings.refresh_s, GONE_REFRESH_S) if gone else self._settings.refresh_s
            try:
                async with asyncio.timeout(rest_s):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()
            try:
                await self.refresh()
            except Exception:
                log.exception("looking at the engine failed", engine=self.name)
            await asyncio.sleep(ERROR_REFRESH_S)

    def _say_change(self, before: EngineView) -> None:
        now = self._view
        if now.gone and not before.gone:
            log.warning("engine lost", engine=self.name, reason=now.reason)
        elif before.models() != now.models():
            log.info("engine serves", engine=self.name, kind=now.kind.name, models=list(now.models()))
        for deployment in now.deployments:
            if deployment.reason and deployment.reason != before.reason_of(deployment.id) and not now.gone:
                log.warning(
                    "deployment", id=deployment.id, status=deployment.status, reason=deployment.reason
                )
