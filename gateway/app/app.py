"""The composition root: makes every part of a gateway from its settings, runs them, stops them in order."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from starlette.routing import Router

from gateway.api.admin.about import AboutAdmin
from gateway.api.admin.diagnosis import DiagnosisAdmin
from gateway.api.admin.fleet import FleetAdmin
from gateway.api.admin.models import ModelsAdmin
from gateway.api.admin.requests import RequestsAdmin
from gateway.api.admin.routes import AdminMethod, admin_pages
from gateway.api.admin.store import StoreAdmin
from gateway.api.admin.whatif import WhatIfAdmin
from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.finished_requests import FinishedRequests
from gateway.api.exchange.job_runs import JobBooks
from gateway.api.exchange.middleware import RequestMiddleware, with_origin_checks
from gateway.api.exchange.request_log import RequestAudit, RequestLog
from gateway.api.routes import build_router
from gateway.api.server.server import Address, bind
from gateway.app import factories
from gateway.app.background import make_background_writer
from gateway.app.cluster import make_cluster
from gateway.app.draining import Draining
from gateway.app.job_runner import RunningParts
from gateway.app.jobs import JobParts, KnownModels
from gateway.app.machine import follow_machine, make_machine
from gateway.app.merged_metrics import MergedMetrics
from gateway.app.pipelines import PipelineParts
from gateway.app.process_reads import (
    ProcessReads,
    make_process_page,
    make_process_reads,
    process_facts,
    process_name,
)
from gateway.app.records import make_events, make_logs, make_records
from gateway.app.regions import region_settings
from gateway.app.reload import shown_settings, taken_up
from gateway.app.scaling import ScalingParts
from gateway.app.tracing import GatewayTraces
from gateway.app.whatif import make_whatif
from gateway.auth.clients import Clients
from gateway.dispatch.moving import move_streams
from gateway.domain.turn_end import TurnEnd
from gateway.fleet.registry import Registry
from gateway.observability.log_ring import LogRing
from gateway.observability.metrics import Metrics
from gateway.observability.tenant_classes import tenant_classes
from gateway.pipeline.aliases import (
    AliasCache,
    AliasCatalog,
    AliasFigures,
    AliasResolver,
    Mirrors,
    VersionSkewDetector,
)
from gateway.pipeline.bodies.reader import BodyReader
from gateway.quota import Limits, Spending
from gateway.quota.usage import UsageLedger
from gateway.runtime.config import Settings
from gateway.runtime.lifecycle import Lifecycle
from gateway.runtime.listeners import inherited
from gateway.runtime.stop_signals import StopSignals
from gateway.runtime.workers.channel import SupervisorLink
from gateway.storage import Store
from shared.process.logs import batched_log
from shared.process.startup import program_version

LAST_LINES_S = 10.0
"""For the audit log's last lines, when the gateway stops."""


class Gateway:
    """One gateway process. Create it on the event loop that runs it."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        worker: SupervisorLink | None = None,
        log: LogRing | None = None,
    ) -> None:
        """``worker`` has the role of one of several workers; ``log`` has the lines of this process's log for
        operators. Raises ConfigError, StateError, ListenFailed (for TLS files)."""
        loop = asyncio.get_running_loop()
        turn_end = TurnEnd(loop)
        self._settings, self._worker, self._log = settings, worker, log or LogRing(settings.log.kept_bytes)
        self._siblings = factories.make_siblings(settings, store, worker)
        owner = worker is None or worker.role.owner
        self.lifecycle = Lifecycle()
        metrics = Metrics()
        self._machine = make_machine(settings, store.state_dir, metrics, self.lifecycle)
        self._cluster = cluster = make_cluster(settings, store, loop)
        self.member = factories.make_member(store, worker, self._siblings)
        registry = factories.make_registry(settings, store, metrics)
        spending = Spending.known(store.usage)
        ledger = UsageLedger(spending=spending)
        self._background_writer = make_background_writer(store, registry, ledger, owner)
        self._dispatcher = factories.make_dispatcher(settings, registry, metrics, ledger, cluster, turn_end)
        follow_machine(self._dispatcher, self._machine)
        self._records = make_records(settings, self._dispatcher)
        if (space := factories.spill_space(settings, store.state_dir, loop.time)) is not None:
            self._dispatcher.unread.spill_to(space)
        self._leases = factories.make_leases(settings, store, metrics, loop.time, cluster.processes)
        self._limits = self._make_limits(store, spending, ledger, metrics)
        self._tenant_weights = settings.queue.tenant_weights
        self._share_out()
        registry.agreed = cluster.with_notices(self._dispatcher.agreed)
        self._agents = factories.make_agent_endpoint(settings, store, registry, metrics, cluster, turn_end)
        self._clients, self._reader = Clients(settings.oidc, store, loop.time), BodyReader()
        book, figures = AliasCache(store.aliases), AliasFigures(metrics.registry)
        self._clients.ring.refresher.add(book.read)
        self._clients.ring.refresher.add(self._limits.read)
        metrics.gauges.version_skew = VersionSkewDetector(registry.index, book, loop).figures
        self._mirrors = Mirrors(self._dispatcher.run, registry.index, figures, loop)
        self._reuse = factories.make_reuse(settings, registry, metrics, loop.time)
        self.audit = factories.make_audit(settings, store, metrics, cluster, prunes=owner)
        self._jobs, self._traces = JobParts(settings, store, metrics), GatewayTraces(settings, metrics)
        self._budget = BufferBudget(settings.http.buffer_bytes, self._machine.pressure.check)
        router = self._router(store, registry, metrics, ledger, book, figures)
        books = factories.uplink_books(settings, ledger, metrics, self.audit, self._limits, self._records)
        books = replace(books, traces=self._traces.uplink)
        self._uplink = factories.make_uplink(settings, store, self._dispatcher, books, worker)
        self.app = self._guarded(router, metrics, figures)
        self.address = Address(*settings.address, factories.tls_files(settings))
        self._server = factories.make_server(
            settings,
            self.app.__call__,
            self.address,
            self._agents.protocol,
            self._machine.descriptors,
            turn_end,
            None if self.member is None else self.member.passing.pass_on,
        )
        self._show(metrics, ledger)

    def _show(self, metrics: Metrics, ledger: UsageLedger) -> None:
        """Metrics that are read from parts of this process."""
        gauges, tls = metrics.gauges, self._server.tls
        metrics.tenant_class = tenant_classes(self._settings.metrics.tenant_classes)
        gauges.spent, gauges.budgets = ledger.figures, self._limits.budget_figures
        if tls is not None:
            gauges.certificate_ends_s = lambda: tls.ends_s

    def _guarded(self, router: Router, metrics: Metrics, figures: AliasFigures) -> RequestMiddleware:
        """What every request passes before its path is looked for."""
        settings = self._settings
        http = replace(factories.http_settings(settings), progress_delivered=metrics.progress_delivery_s)
        records = self._records if settings.records.recent else None
        add = self.audit.add if settings.audit.requests else None
        audit = RequestAudit(add, self._limits.price, records=records) if add or records else None
        loop = asyncio.get_running_loop()
        lines = batched_log("gateway.request", loop.call_later)
        traces = self._traces.requests
        begin, finish = (None, None) if traces is None else (traces.begin, traces.finished)
        log = RequestLog(metrics, figures, settings.log.requests, audit, finish, log=lines)
        # what is called for every request is handed on as a method: an object that is called costs twice that
        told = FinishedRequests(log.__call__, loop.call_soon)
        checked: Any = with_origin_checks(router, http)
        return RequestMiddleware(
            checked.__call__, http, self._budget, self.lifecycle, told.__call__, self._reader, begin
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
        parts = PipelineParts(
            self._dispatcher.run,
            ledger,
            AliasResolver(book, registry.index, self._mirrors, figures, clock, grace_s),
            self._reuse,
            self._limits,
            http.facts,
            self.audit.check if settings.audit.required else None,
            lambda name: catalog.model(name) is not None,
            registry.index.only_model,
            registry.index.continues,
        )
        pipeline = parts.pipeline(keys)
        audit = self.audit.add if settings.audit.requests else None
        books = JobBooks(metrics, audit, self._limits.price, settings.log.requests, traces=self._traces.jobs)
        if settings.records.recent:
            books = replace(books, records=self._records)
        memory, ring = (self._budget, self._reader), self._clients.ring
        if settings.jobs.run:
            more = (self._dispatcher, ring, memory, books, book.models_of, self._all_weights)
            self._jobs.running = RunningParts(settings, store, self._jobs.objects, parts, *more)
        member = self._cluster.member
        reads = make_process_reads(settings, store, member, self._siblings)
        shown = metrics if self._siblings is None else MergedMetrics(metrics, self._siblings)
        page, known = make_process_page(store, member, reads), KnownModels(book, catalog)
        of_jobs = (self._limits.price, known, self._reader, ring, self._all_weights)
        later = self._jobs.offer(keys, self._dispatcher, *of_jobs)
        files = self._jobs.pages(keys)
        admin = admin_pages(keys, self._admin_methods(store, registry, reads))
        return build_router(pipeline, keys, catalog, shown, self.lifecycle, http, admin, page, files, later)

    def _make_limits(self, store: Store, spending: Spending, ledger: UsageLedger, metrics: Metrics) -> Limits:
        bounds, clock, shared = self._dispatcher.bounds, self._dispatcher.timers.time, self._leases
        limits = Limits(store.limits, spending, bounds, clock, refused=metrics.refused, shared=shared)
        ledger.price, limits.changed = limits.price, self._share_out
        return limits

    def _admin_methods(
        self, store: Store, registry: Registry, reads: ProcessReads | None
    ) -> list[AdminMethod]:
        settings, clock, dispatcher = self._settings, registry.clock, self._dispatcher
        index, depths, name = registry.index, dispatcher.room.depths, process_name(settings, self._cluster)
        fleet = self._fleet = FleetAdmin(
            registry,
            store.agents,
            depths,
            clock,
            self._facts,
            reads,
            self._agents.follow_store,
            move=lambda agent: move_streams(registry, index, agent, clock(), dispatcher.demand),
        )
        stored = StoreAdmin(store, lambda: index.models)
        about = AboutAdmin(self._facts, lambda: shown_settings(self._settings))
        asked = RequestsAdmin(self._records, name, reads)
        live = (dispatcher, self._records, store, self._machine, self.lifecycle, name, reads)
        http = factories.http_settings(settings)
        doctor = DiagnosisAdmin(program_version(), http.body, http.comment_interval_s)
        models = ModelsAdmin(index, dispatcher.loads, store.acts, lambda model: depths().get(model, 0), clock)
        jobs, whatif = self._jobs.admin(self._clients.ring), self._whatif(store)
        first = self._worker is None or self._worker.role.index == 0
        self._scaling = ScalingParts(settings, dispatcher, reads, store, self._cluster.ownership, first=first)
        log = make_logs(self._log, self.lifecycle, name, reads)
        more = (stored, about, doctor, whatif, self._scaling.admin)
        pages = (fleet, asked, make_events(*live), log, models, jobs, *more)
        return [method for page in pages for method in page.methods()]

    def _whatif(self, store: Store) -> WhatIfAdmin:
        fleet = (self._dispatcher, self._limits.price, self._all_weights)
        processes = (self._cluster.member, self._siblings)
        return make_whatif(lambda: self._settings, store, self._records, *fleet, *processes)

    def _facts(self) -> dict[str, Any]:
        return process_facts(self._settings, self._cluster, self.lifecycle, self._leases)

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
        if self._dispatcher.regions is not None:
            self._dispatcher.regions.retune(region_settings(taken_up(self._settings, settings).regions))
        self._tenant_weights = settings.queue.tenant_weights
        self._dispatcher.metrics.tenant_class = tenant_classes(settings.metrics.tenant_classes)
        self._reuse.retune(factories.reuse_rules(settings), by_header=settings.reuse.by_header)
        self._settings = taken_up(self._settings, settings)

    def _weights(self, of_settings: Mapping[str, float]) -> dict[str, float]:
        """Of tenants: what the store says of one counts before the settings."""
        return {**of_settings, **self._limits.weights}

    def _share_out(self) -> None:
        self._dispatcher.share_out(self._all_weights(), self._limits.queue_shares)

    def _all_weights(self) -> dict[str, float]:
        return self._weights(self._tenant_weights)

    async def run(self, stop: StopSignals, announce: Callable[[str], Awaitable[None]]) -> None:
        """Serve until ``stop`` is requested, then drain. ``announce`` gets the URL once clients can connect.

        Raises ListenFailed.
        """
        listener, plain = self._listen()
        if plain is not None:
            self._server.send_on(plain)
        host, port = listener.getsockname()[:2]
        async with self._traces.exported(), self._audited(f"{host}:{port}"), asyncio.TaskGroup() as tasks:
            edges = (self._clients.run(), self._jobs.run(), self._scaling.run())
            edge_tasks = [tasks.create_task(each) for each in edges]
            if (tls := self._server.tls) is not None:
                edge_tasks.append(tasks.create_task(tls.watch(self._settings.tls.reload_s)))
            tasks.create_task(self._background_writer.run())
            parts = [part for part in (self._leases, self._cluster.member, self._uplink) if part is not None]
            for part in parts:
                tasks.create_task(part.run())
            guarding = tasks.create_task(self._machine.watch(self._server.hold))
            watching = tasks.create_task(self._agents.watch())
            serving = tasks.create_task(self._server.serve([listener]))
            await self._server.ready.wait()
            if self.member is not None:
                await self.member.begin(self._server)
            self.lifecycle.serve()
            await announce(f"{self.address.scheme}://{f'[{host}]' if ':' in host else host}:{port}")
            await stop.requested.wait()
            await self._draining().stop(stop)
            self._server.should_exit = True
            watching.cancel()
            await serving
            if self.member is not None:
                self.member.close()
            guarding.cancel()
            for task in edge_tasks:
                task.cancel()
            self._background_writer.stop()
            for part in parts:
                part.stop()

    def report_ready(self) -> None:
        """Tell the supervisor, if there is one, that clients can connect."""
        if self.member is not None:
            self.member.report_ready(self._fleet)

    def _listen(self) -> tuple[socket.socket, socket.socket | None]:
        """The listening socket, and the one whose clients are sent on to HTTPS. Raises ListenFailed."""
        if self._worker is not None:
            role = self._worker.role
            return inherited(role.listener), None if role.redirect is None else inherited(role.redirect)
        redirect = self._settings.tls.redirect
        return bind(self.address), None if redirect is None else bind(Address(*redirect))

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

    def _draining(self) -> Draining:
        drain_s, member = self._settings.drain_s, self._cluster.member
        users = (self._jobs, self._mirrors, self._agents, self._uplink, member)
        return Draining(drain_s, self.lifecycle, self._server, self._dispatcher, *users, self._reader)

    def reload_tls(self) -> None:
        """Take up certificates that have changed, now."""
        if self._server.tls is not None:
            self._server.tls.reload()
