"""The composition root: makes every part of a gateway from its settings, runs them, stops them in order."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from starlette.routing import Router

from gateway.api.admin.fleet import FleetAdmin
from gateway.api.admin.routes import admin_pages
from gateway.api.admin.store import StoreAdmin
from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.middleware import RequestMiddleware, with_origin_checks
from gateway.api.exchange.request_log import RequestAudit, RequestLog
from gateway.api.routes import build_router
from gateway.api.server.server import LAST_WORDS_S, Address, bind
from gateway.app import factories
from gateway.app.reload import Reload
from gateway.auth.clients import Clients
from gateway.fleet.registry import Registry
from gateway.observability.metrics import Metrics
from gateway.pipeline.aliases import (
    AliasCache,
    AliasCatalog,
    AliasFigures,
    AliasResolver,
    Mirrors,
    VersionSkewDetector,
)
from gateway.pipeline.bodies import BodyReader
from gateway.pipeline.pipeline import Pipeline
from gateway.quota import Limits, Spending
from gateway.quota.usage import UsageLedger
from gateway.runtime.background_writer import BackgroundWriter, BackgroundWriterSettings
from gateway.runtime.config import Settings
from gateway.runtime.garbage import young_collections_only
from gateway.runtime.lifecycle import Lifecycle
from gateway.runtime.machine import MachineGuard, make_room
from gateway.storage import Store
from shared.process.logs import batched_log

_log = structlog.get_logger("gateway")

STOPPING = "this gateway is shutting down"

LAST_LINES_S = 10.0
"""For the audit log's last lines, when the gateway stops."""


class StopSignals:
    """The operator's signals: the first one requests to finish, the second one to end at once."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()

    def receive(self) -> None:
        (self.forced if self.requested.is_set() else self.requested).set()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """SIGTERM and SIGINT come here while inside."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.receive)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


class Gateway:
    """One gateway process. Create it on the event loop that runs it."""

    def __init__(self, settings: Settings, store: Store) -> None:
        """Raises ConfigError, StateError, ListenFailed (for TLS files)."""
        loop = asyncio.get_running_loop()
        self._settings = settings
        self.lifecycle = Lifecycle()
        metrics = Metrics()
        self._machine = MachineGuard(metrics, settings.machine, lambda: self.lifecycle.in_flight)
        registry = factories.make_registry(settings, store, metrics)
        spending = Spending.known(store.usage)
        ledger = UsageLedger(spent=spending.add)
        kept = BackgroundWriterSettings(registry.settings.max_models)
        self._background_writer = BackgroundWriter(
            registry.index, store.models.note, ledger, store.usage.add, kept, backup=store.backup
        )
        self._dispatcher = factories.make_dispatcher(settings, registry, metrics, ledger)
        self._dispatcher.unread.roomy = lambda: not self._machine.pressure.level
        if (space := factories.spill_space(settings, store.state_dir, loop.time)) is not None:
            self._dispatcher.unread.spill_to(space)
        self._limits = Limits(
            store.limits, spending, self._dispatcher.bounds, loop.time, refused=metrics.refused
        )
        ledger.price, self._limits.changed = self._limits.price, self._share_out
        self._tenant_weights = settings.queue.tenant_weights
        self._share_out()
        self._agents = factories.make_agent_endpoint(settings, store, registry, metrics)
        self._clients = Clients(settings.oidc, store, loop.time)
        book, figures = AliasCache(store.aliases), AliasFigures(metrics.registry)
        self._clients.ring.refresher.add(book.read)
        self._clients.ring.refresher.add(self._limits.read)
        metrics.gauges.version_skew = VersionSkewDetector(registry.index, book, loop).figures
        self._mirrors = Mirrors(self._dispatcher.run, registry.index, figures, loop)
        self._reuse = factories.make_reuse(settings, registry, metrics, loop.time)
        self.audit = factories.make_audit(settings, store, metrics)
        router = self._router(store, registry, metrics, ledger, book, figures)

        http = factories.http_settings(settings)
        budget = BufferBudget(settings.http.buffer_bytes, self._machine.pressure.check)
        audit = RequestAudit(self.audit.add, self._limits.price) if settings.audit.requests else None
        lines = batched_log("gateway.request", loop.call_later)
        log = RequestLog(metrics, figures, lines=settings.log.requests, audit=audit, log=lines)
        self._reader = BodyReader()
        self.app = RequestMiddleware(
            with_origin_checks(router, http), http, budget, self.lifecycle, log, self._reader
        )
        self.address = Address(*settings.address, factories.tls_files(settings))
        self._server = factories.make_server(
            settings, self.app, self.address, self._agents.protocol, self._machine.descriptors
        )

    def _router(
        self,
        store: Store,
        registry: Registry,
        metrics: Metrics,
        ledger: UsageLedger,
        book: AliasCache,
        figures: AliasFigures,
    ) -> Router:
        """Every path: those of clients, which go through the pipeline, and those of the admin API."""
        settings, keys, clock = self._settings, self._clients.credentials, registry.clock
        http = factories.http_settings(settings)
        catalog = AliasCatalog(registry, book, registry.settings.owned_by)
        grace_s = settings.dispatch.reconnect_grace_s
        pipeline = Pipeline(
            keys,
            self._dispatcher.run,
            ledger,
            AliasResolver(book, registry.index, self._mirrors, figures, clock, grace_s),
            self._reuse,
            self._limits,
            facts=http.facts,
            gate=self.audit.check if settings.audit.required else None,
            knows=lambda name: catalog.model(name) is not None,
        )
        depths = self._dispatcher.room.depths
        fleet = FleetAdmin(registry, store.agents, depths, clock, note=self.audit.note)
        stored = StoreAdmin(store, lambda: registry.index.models)
        admin = admin_pages(keys, [*fleet.methods(), *stored.methods()])
        return build_router(pipeline, keys, catalog, metrics, self.lifecycle, http, admin)

    def retune(self, settings: Settings) -> None:
        """Take up what can change while it runs (:data:`gateway.app.reload.CHANGEABLE`). Raises ConfigError,
        and has changed nothing then."""
        dispatch, paths = settings.dispatch, factories.engine_paths(settings)
        try:
            self._dispatcher.retune(
                dispatch.policy, dispatch.policies, self._weights(settings.queue.tenant_weights)
            )
        except ValueError as error:
            raise factories.no_such_policy(error) from error
        self._dispatcher.set_engine_paths(paths)
        self._tenant_weights = settings.queue.tenant_weights
        self._reuse.retune(factories.reuse_rules(settings), by_header=settings.reuse.by_header)

    def _weights(self, of_settings: Mapping[str, float]) -> dict[str, float]:
        """Of tenants: what the store says of one counts before the settings."""
        return {**of_settings, **self._limits.weights}

    def _share_out(self) -> None:
        self._dispatcher.share_out(self._weights(self._tenant_weights), self._limits.queue_shares)

    async def run(self, stop: StopSignals, announce: Callable[[str], None]) -> None:
        """Serve until ``stop`` is requested, then drain. ``announce`` gets the URL once clients can connect.

        Raises ListenFailed.
        """
        listener = bind(self.address)
        if (redirect := self._settings.tls.redirect) is not None:
            self._server.send_on(bind(Address(*redirect)))
        host, port = listener.getsockname()[:2]
        async with self._audited(f"{host}:{port}"), asyncio.TaskGroup() as tasks:
            edge_tasks = [tasks.create_task(self._clients.run())]
            if (tls := self._server.tls) is not None:
                edge_tasks.append(tasks.create_task(tls.watch(self._settings.tls.reload_s)))
            tasks.create_task(self._background_writer.run())
            guarding = tasks.create_task(self._machine.watch(self._server.hold))
            watching = tasks.create_task(self._agents.watch())
            serving = tasks.create_task(self._server.serve([listener]))
            await self._server.ready.wait()
            self.lifecycle.serve()
            announce(f"{self.address.scheme}://{f'[{host}]' if ':' in host else host}:{port}")
            await stop.requested.wait()
            await self._drain(stop.forced)
            self._server.should_exit = True
            watching.cancel()
            await serving
            guarding.cancel()
            for task in edge_tasks:
                task.cancel()
            self._background_writer.stop()

    @asynccontextmanager
    async def _audited(self, listen: str) -> AsyncIterator[None]:
        """Inside, the audit log is written."""
        self.audit.start()
        self.audit.note("gateway.start", listen=listen, pid=os.getpid())
        try:
            yield
        finally:
            self.audit.note("gateway.stop")
            await asyncio.to_thread(self.audit.stop, LAST_LINES_S)

    def reload_tls(self) -> None:
        """Take up certificates that have changed, now."""
        if self._server.tls is not None:
            self._server.tls.reload()

    async def _drain(self, forced: asyncio.Event) -> None:
        """Take nothing new, tell the agents, let what runs finish within ``drain_s``, then end everything."""
        _log.info("stopping", requests=self.lifecycle.in_flight, drain_s=self._settings.drain_s)
        self.lifecycle.drain()
        self._dispatcher.stop_accepting()
        self._mirrors.stop()
        self._agents.drain(STOPPING, self._settings.drain_s)
        async with _until_forced(self._settings.drain_s, forced):
            await self.lifecycle.wait_idle()
        async with _until_forced(LAST_WORDS_S, forced):
            await self._dispatcher.wait_idle()
        if self.lifecycle.in_flight:
            _log.warning("cutting_requests", requests=self.lifecycle.in_flight)
        await self._dispatcher.close()
        async with _until_forced(LAST_WORDS_S, forced):
            await self.lifecycle.wait_idle()
        await self._agents.close()
        self._reader.close()
        if self.lifecycle.in_flight:
            self._server.abort_connections()


@asynccontextmanager
async def _until_forced(seconds: float, forced: asyncio.Event) -> AsyncIterator[None]:
    """Leave the block when it is done, after ``seconds``, or as soon as ``forced`` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds) as limit, asyncio.TaskGroup() as tasks:

            async def end_when_forced() -> None:
                await forced.wait()
                limit.reschedule(0)

            ending = tasks.create_task(end_when_forced())
            yield
            ending.cancel()


async def _run(
    settings: Settings, load: Callable[[], Settings], store: Store, announce: Callable[[str], None]
) -> None:
    stop = StopSignals()
    say_if_few = make_room(settings.http.connections, settings.agents.max_agents)
    with stop.installed():
        gateway = Gateway(settings, store)
        reload = Reload(
            settings, load, gateway.retune, lambda names: gateway.audit.note("settings.reload", changed=names)
        )

        def again() -> None:
            reload()
            gateway.reload_tls()

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, again)

        def started(url: str) -> None:
            announce(url)
            say_if_few()

        await gateway.run(stop, started)


def run(
    settings: Settings,
    state_dir: Path,
    announce: Callable[[str, Store], None],
    load: Callable[[], Settings] | None = None,
) -> None:
    """Run a gateway in this process until it is told to stop.

    ``load`` reads the settings again when SIGHUP asks for it, and may raise ConfigError; without it they
    stay as they are. ``announce`` gets the URL and the store once clients can connect. Raises ConfigError,
    StateError and ListenFailed.
    """
    with (
        young_collections_only(),
        Store.open(state_dir, serve=True) as store,
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        runner.run(_run(settings, load or (lambda: settings), store, lambda url: announce(url, store)))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
