"""The parts of a gateway, and the slices of the settings that each gets."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.inbound import BodyLimits
from gateway.api.server.client_addresses import HeaderFields, PerAddressLimiter, TrustedProxies
from gateway.api.server.cors import Cors
from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.server import Address, GatewayServer, build_server
from gateway.api.server.tls import TlsFiles
from gateway.api.server.tunnel_passing import PassOn
from gateway.app.cluster import Cluster
from gateway.app.regions import region_settings
from gateway.app.worker import WorkerMember
from gateway.auth import AgentDirectory
from gateway.dispatch.decisions.records import RequestRecords
from gateway.dispatch.dispatcher import Dispatcher, DispatchSettings, QueueSettings
from gateway.dispatch.placement import PlacementSettings
from gateway.dispatch.response_buffers import SpillSpace
from gateway.domain.engine_paths import BadRule, EnginePaths
from gateway.domain.request import Request
from gateway.domain.scopes import AdminRole
from gateway.domain.store_address import StoreAddress
from gateway.domain.turn_end import TurnEnd
from gateway.fleet.endpoint import AgentEndpoint, AgentEndpointSettings
from gateway.fleet.registry import Registry, RegistrySettings
from gateway.observability.audit import Retention
from gateway.observability.audit.writer import AuditSettings, AuditWriter, audit_writer
from gateway.observability.gauges import FamilyCollector
from gateway.observability.metrics import Metrics
from gateway.pipeline.cache import AnswerCache, CacheMetrics, CacheRule, CacheSettings, CacheStage
from gateway.quota.budget_reserve import BudgetReserve
from gateway.quota.lease_client import LeaseClient
from gateway.quota.limits import Limits
from gateway.quota.pools import ProcessCount
from gateway.quota.usage import UsageLedger
from gateway.runtime.config import ConfigError, Settings
from gateway.runtime.descriptors import DescriptorBudget
from gateway.runtime.workers.channel import SupervisorLink
from gateway.runtime.workers.passing import ConnectionPassing
from gateway.runtime.workers.siblings import Siblings
from gateway.scheduling.base import DeploymentConstraints
from gateway.storage import Store
from gateway.storage.leases.rules import EngineUnusable, LeaseEngine
from gateway.storage.leases.sql import SqlLeaseEngine
from gateway.storage.leases.valkey import SCHEMES, ValkeyLeaseEngine
from gateway.uplink.capacity import UplinkCapacity
from gateway.uplink.load_wishes import DispatcherLoads
from gateway.uplink.runner import UplinkBooks, UplinkRunner
from gateway.uplink.uplink import Uplink, UplinkSettings, UplinkUnusable
from gateway.uplink.worker_uplink import WorkerUplink, directory_of
from shared.protocol.peers import PeerDirectory


def http_settings(settings: Settings) -> HttpSettings:
    """The slice of the settings that the HTTP surface gets."""
    table = settings.http
    return HttpSettings(
        body=BodyLimits(body_bytes=table.body_bytes, grace_s=table.body_silence_s),
        comment_interval_s=table.comment_s,
        facts=table.facts,
        metrics_public=table.metrics_public,
        proxies=trusted_proxies(settings),
        refuse_plain=settings.behind_tls_terminator,
        requests_per_ip=table.connections_per_ip,
        cors=Cors(table.cors_origins) if table.cors_origins else None,
    )


def trusted_proxies(settings: Settings) -> TrustedProxies | None:
    """None: what proxies say of their clients is not believed."""
    networks = settings.trusted_proxies
    return TrustedProxies(networks, settings.trusted_proxy_header) if networks else None


def client_of(proxies: TrustedProxies | None) -> Callable[[str, HeaderFields], str]:
    """Whose connection it is, by its address and its header."""
    if proxies is None:
        return lambda address, header: address
    return lambda address, header: proxies.origin(address, header).address


def agent_settings(settings: Settings, peers: PeerDirectory | None = None) -> AgentEndpointSettings:
    """The slice of the settings that agents' endpoint gets. Behind a terminator that is not known strangers
    are not counted by address: they come from few."""
    most = settings.agents.max_strangers
    if settings.behind_tls_terminator and not settings.trusted_proxies:
        return AgentEndpointSettings(max_strangers=most, max_strangers_per_address=most, peers=peers)
    return AgentEndpointSettings(max_strangers=most, peers=peers)


def tls_files(settings: Settings) -> TlsFiles | None:
    """None: TLS is not ended here."""
    table = settings.tls
    if table.cert is None or table.key is None:
        return None
    return TlsFiles(table.cert, table.key, table.client_ca, table.agents_required)


def make_server(
    settings: Settings,
    app: Any,
    address: Address,
    tunnel_protocol: Callable[..., Any],
    descriptors: DescriptorBudget,
    turn_end: TurnEnd,
    pass_on: PassOn | None = None,
) -> GatewayServer:
    """Behind a terminator that is not known all connections come from few addresses, and are not counted by
    them. Raises ListenFailed."""
    http, proxies = settings.http, trusted_proxies(settings)
    per_address = http.connections_per_ip
    if proxies is not None:
        places = PerAddressLimiter(per_address, proxies.trusts)
    else:
        places = PerAddressLimiter(None if settings.behind_tls_terminator else per_address)
    limits = ConnectionLimits(http.head_bytes, http.head_s, http.connections)
    required = settings.tls.client_required
    return build_server(
        app,
        address,
        limits,
        tunnel_protocol,
        descriptors,
        places,
        wants_certificate=required,
        turn_end=turn_end,
        pass_on=pass_on,
    )


def make_registry(settings: Settings, store: Store, metrics: Metrics) -> Registry:
    """The registry, with the models that were served before."""
    clock = asyncio.get_running_loop().time
    registry = Registry(metrics, clock, RegistrySettings(max_agents=settings.agents.max_agents))
    registry.gateway_id = lambda: store.identity.known.current.id
    registry.gateway_ids = lambda: frozenset(store.identity.known.ids)
    for fact in store.models.list(registry.settings.max_models):
        registry.index.learn(fact.name, fact.first_s, lately=True)
    return registry


def make_agent_endpoint(
    settings: Settings,
    store: Store,
    registry: Registry,
    metrics: Metrics,
    cluster: Cluster,
    turn_end: TurnEnd,
) -> AgentEndpoint:
    return AgentEndpoint(
        AgentDirectory(store, settings.agents.certificate_days * 86_400),
        registry,
        metrics,
        agent_settings(settings, cluster.peers),
        client_of=client_of(trusted_proxies(settings)),
        note_seen=store.agents.touch,
        owns=lambda: cluster.ownership.owns,
        at_turn_end=turn_end.call,
    )


def dispatch_settings(settings: Settings) -> DispatchSettings:
    """The slice of the settings that dispatch gets: what has the same name."""
    names = {field.name for field in fields(DispatchSettings)}
    return DispatchSettings(**settings.dispatch.model_dump(include=names))


def placement_settings(settings: Settings) -> PlacementSettings | None:
    """The slice of the settings that placement gets; None: nothing is loaded on demand."""
    table = settings.placement
    if not table.enabled:
        return None
    bounds = table.model_dump(exclude={"enabled", "pinned"})
    return PlacementSettings(pinned=tuple(table.pinned), **bounds)


def make_dispatcher(
    settings: Settings,
    registry: Registry,
    metrics: Metrics,
    ledger: UsageLedger,
    cluster: Cluster,
    turn_end: TurnEnd,
) -> Dispatcher:
    queue, dispatch = settings.queue, settings.dispatch
    paths = engine_paths(settings)
    try:
        dispatcher = Dispatcher(
            registry,
            metrics,
            asyncio.get_running_loop(),
            queue=QueueSettings(**queue.model_dump(), shared_slots=cluster.demands is not None),
            settings=dispatch_settings(settings),
            policy=dispatch.policy,
            policies=dispatch.policies,
            placement=placement_settings(settings),
            ran=ledger.ran,
            ownership=cluster.ownership,
            demands=cluster.demands,
            at_turn_end=turn_end.call,
        )
    except ValueError as error:
        raise no_such_policy(error) from error
    dispatcher.set_engine_paths(paths)
    if settings.regions.enabled:
        gate = dispatcher.follow_regions(region_settings(settings.regions))
        FamilyCollector(metrics.registry, gate.figures)
    if cluster.knowledge is not None:
        performance = dispatcher.scheduling.scheduler.performance
        cluster.knowledge.attach(dispatcher.room, performance, dispatcher.health)
        FamilyCollector(metrics.registry, cluster.knowledge.figures)
    if cluster.member is not None:
        FamilyCollector(metrics.registry, cluster.member.figures)
    return dispatcher


def spill_space(settings: Settings, state_dir: Path, clock: Callable[[], float]) -> SpillSpace | None:
    """A file for unread answers that memory has no room for; None where there is to be none."""
    table = settings.dispatch
    if not table.unread_disk_bytes:
        return None
    return SpillSpace(table.unread_directory or state_dir, table.unread_disk_bytes, clock)


def engine_paths(settings: Settings) -> EnginePaths:
    """Who may manage engines by their own paths. Raises ConfigError."""
    table = settings.engines
    role = None if table.manage_role == "none" else AdminRole(table.manage_role)
    try:
        return EnginePaths(role, table.manage, table.allow)
    except BadRule as error:
        raise ConfigError(f"engines.manage, engines.allow: {error}") from error


def reuse_rules(settings: Settings) -> dict[str, CacheRule]:
    """The rules for reusing answers, by model."""
    return {model: CacheRule(**rule.model_dump()) for model, rule in settings.reuse.models.items()}


def make_reuse(
    settings: Settings, registry: Registry, metrics: Metrics, clock: Callable[[], float]
) -> CacheStage:
    def serves(request: Request, version: str) -> bool:
        fit = DeploymentConstraints(request.route, version=version, where=request.where)
        return registry.index.someone_else(request.model, fit, patiently=True)

    bounds = settings.reuse.model_dump(exclude={"models"})
    cache = AnswerCache(settings.reuse.cache_bytes, settings.reuse.entries)
    figures = CacheMetrics(metrics.registry, cache)
    return CacheStage(CacheSettings(reuse_rules(settings), **bounds), cache, figures, serves, clock)


def make_audit(
    settings: Settings, store: Store, metrics: Metrics, cluster: Cluster, *, prunes: bool = True
) -> AuditWriter:
    table = settings.audit
    chosen = AuditSettings(buffer_records=table.buffer_records, prunes=prunes)
    keep = Retention(table.keep_days, table.keep_bytes)
    writer = audit_writer(store, chosen, keep, lambda: cluster.ownership.owns)
    FamilyCollector(metrics.registry, writer.figures)
    return writer


def uplink_books(
    settings: Settings,
    ledger: UsageLedger,
    metrics: Metrics,
    audit: AuditWriter,
    limits: Limits,
    records: RequestRecords,
) -> UplinkBooks:
    """Where requests of the parent gateway are booked."""
    table = settings.audit
    gate, add = audit.check if table.required else None, audit.add if table.requests else None
    kept = records if settings.records.recent else None
    return UplinkBooks(ledger, metrics, add, limits.price, gate, kept)


def make_uplink(
    settings: Settings,
    store: Store,
    dispatcher: Dispatcher,
    books: UplinkBooks,
    worker: SupervisorLink | None,
) -> Uplink | WorkerUplink | None:
    """None where this gateway is no agent of another one. Raises ConfigError."""
    if (table := settings.uplink).url is None:
        return None
    registry, place = dispatcher.registry, 0 if worker is None else worker.role.index
    chosen = UplinkSettings(
        table.url,
        directory_of(store.state_dir, place),
        None if table.join is None else table.join.get_secret_value(),
        table.name,
        table.labels,
        table.ca_file,
        place,
    )

    def parts(uplink: Uplink) -> tuple[UplinkCapacity, UplinkRunner]:
        index = registry.index
        own_ids, labels, depth = registry.gateway_ids, table.labels, dispatcher.room.depth
        capacity = UplinkCapacity(
            index,
            depth,
            registry.gateway_id,
            lambda: uplink.parents,
            dispatcher.timers,
            labels,
            DispatcherLoads(dispatcher),
            dispatcher.demand.look,
        )
        dispatcher.demand.passed_on = capacity.slots.waiting
        return capacity, UplinkRunner(dispatcher, index, capacity, books, own_ids, labels)

    def make() -> Uplink:
        return Uplink(chosen, registry.gateway_ids(), parts)

    uplink: Uplink | WorkerUplink
    if worker is None or not (place or worker.role.replaces):
        try:
            uplink = make()
        except UplinkUnusable as error:
            raise ConfigError(f"uplink: {error}") from error
    else:
        uplink = WorkerUplink(chosen, directory_of(store.state_dir, 0), make)
    FamilyCollector(registry.metrics.registry, uplink.figures)
    return uplink


def make_siblings(settings: Settings, store: Store, worker: SupervisorLink | None) -> Siblings | None:
    """None where there are no other workers."""
    own = settings.cluster.process
    if worker is None or own is None:
        return None
    return Siblings(store.state_dir, own, worker.role.processes)


def make_member(
    store: Store, worker: SupervisorLink | None, siblings: Siblings | None
) -> WorkerMember | None:
    """None where there are no other workers."""
    if worker is None or siblings is None:
        return None
    passing = ConnectionPassing(store.state_dir, siblings.own, lambda: siblings.others)
    return WorkerMember(worker, siblings, passing)


def make_leases(
    settings: Settings, store: Store, metrics: Metrics, clock: Callable[[], float], processes: ProcessCount
) -> LeaseClient | None:
    """What leases limits that other gateways have too; None where this one has them alone. Raises
    ConfigError."""
    if settings.shared is None:
        return None
    try:
        engine = lease_engine(settings.shared.get_secret_value())
    except EngineUnusable as error:
        raise ConfigError(f"shared: {error}") from error
    process = uuid.uuid4().hex
    reserve = None
    if store.address is not None and isinstance(engine, ValkeyLeaseEngine):
        reserve = BudgetReserve(reserve_engine(store.address), process, clock)
    client = LeaseClient(engine, process, processes, clock, store.usage.spent, reserve)
    FamilyCollector(metrics.registry, client.figures)
    return client


def reserve_engine(address: StoreAddress) -> SqlLeaseEngine:
    """The store itself. Raises ConfigError."""
    try:
        password = None if address.password_file is None else address.password_file.read_text().strip()
        return SqlLeaseEngine(address.url, password=password, durable=True)
    except (EngineUnusable, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"store: limits cannot be kept there ({error})") from error


def lease_engine(url: str) -> LeaseEngine:
    """Raises EngineUnusable."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme in SCHEMES:
        return ValkeyLeaseEngine(url)
    if separator and scheme.partition("+")[0] in ("sqlite", "postgresql"):
        return SqlLeaseEngine(url)
    raise EngineUnusable("write redis://HOST:PORT/0, valkey://…, postgresql://… or sqlite:////PATH")


def no_such_policy(error: ValueError) -> ConfigError:
    return ConfigError(f"dispatch.policy, dispatch.policies: {error}")
