"""What can be set, with the default of each and its bounds."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    FilePath,
    SecretStr,
    field_validator,
    model_validator,
)

from gateway.domain.oidc import OidcTable
from gateway.domain.store_address import StoreAddress
from gateway.runtime.config.cluster import ClusterTable, SettingsTable, StoreTable
from gateway.runtime.config.jobs import JobsTable
from gateway.runtime.config.metrics import MetricsTable
from gateway.runtime.config.networks import Networks
from gateway.runtime.config.regions import RegionsTable
from gateway.runtime.config.scaling import ScalingTable
from gateway.runtime.config.uplink import UplinkTable
from shared.process.tracing.settings import OtelTable

PREFIX = "TRUNKLINE_GATEWAY_"
DEFAULT_LISTEN = "127.0.0.1:8700"
MIB = 1024 * 1024
LEAST_SILENCE_S = 5.0
"""A worker that is merely busy may say nothing for seconds."""

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?")

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Share = Annotated[float, Field(ge=0, le=1)]
Rule = Annotated[str, Field(min_length=2, max_length=200)]
Weight = Annotated[float, Field(ge=0.001, le=1000)]


def split_address(text: str) -> tuple[str, int]:
    """Host and port in ``HOST:PORT`` or ``[IPv6]:PORT``. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    bare = ":" in host and not text.startswith("[")
    if not colon or not host or bare or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("write HOST:PORT, for example 127.0.0.1:8700 or [::]:8700")
    return host, int(port)


def _checked_address(text: str) -> str:
    split_address(text)
    return text


ListenAddress = Annotated[str, AfterValidator(_checked_address)]


class TlsTable(SettingsTable):
    """Ending TLS here."""

    cert: FilePath | None = None
    """Certificate chain, PEM."""
    key: FilePath | None = None
    reload_s: Annotated[float, Field(ge=0.05, le=86_400)] = 5.0
    """How often the files are looked at; changed ones are taken up if they can be used."""
    client_ca: FilePath | None = None
    """Authorities whose client certificates are checked, PEM."""
    client_required: bool = False
    """Take requests only over connections with such a certificate; agents need none on /tunnel."""
    agents_required: bool = False
    """No connection without one, agents' neither."""
    redirect_listen: ListenAddress | None = None
    """HOST:PORT on which plain HTTP is sent on to HTTPS."""

    @model_validator(mode="after")
    def _fits_together(self) -> "TlsTable":
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls.cert and tls.key go together")
        if self.cert is None and (self.client_ca is not None or self.redirect_listen is not None):
            raise ValueError("tls.client_ca and tls.redirect_listen need tls.cert and tls.key")
        if self.client_ca is None and (self.client_required or self.agents_required):
            raise ValueError("tls.client_required and tls.agents_required need tls.client_ca")
        return self

    @property
    def redirect(self) -> tuple[str, int] | None:
        """Host and port to listen on for plain HTTP."""
        return None if self.redirect_listen is None else split_address(self.redirect_listen)


class HttpTable(SettingsTable):
    """How clients are treated."""

    body_bytes: Annotated[int, Field(ge=1024, le=4096 * MIB)] = 64 * MIB
    """Longest request body."""
    buffer_bytes: Annotated[int, Field(ge=MIB)] = 1024 * MIB
    """Memory for the bodies of all requests together, of which no key and no tenant gets all."""
    body_silence_s: Seconds = 30.0
    """Longest pause in a request body."""
    comment_s: Seconds = 15.0
    """How often a stream that waits gets a comment."""
    facts: bool = True
    """Send x-trunkline-agent, x-trunkline-queue-ms, x-trunkline-attempts."""
    metrics_public: bool = False
    """Let /metrics be read without a key."""
    head_bytes: Annotated[int, Field(ge=4096, le=MIB)] = 64 * 1024
    """Longest request line and headers."""
    head_s: Seconds = 15.0
    """Longest time for them to come."""
    connections: Count = 16_384
    """Client connections at once."""
    connections_per_ip: Count = 4096
    """Of one address (of IPv6 a /64) among them, and requests at once of one behind trusted proxies; loopback
    and trusted proxies may have all."""
    cors_origins: Annotated[list[str], Field(max_length=1000)] = []
    """Origins whose pages may use this gateway, each as SCHEME://HOST[:PORT]."""

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin: write SCHEME://HOST[:PORT] in lower case, no '*'")
        return value


class WaitingTable(SettingsTable):
    """Bounds of the waiting room, and its order."""

    max_requests: Count = 1000
    """Waiting for one model."""
    max_requests_total: Count = 10_000
    max_body_bytes: Annotated[int, Field(ge=MIB)] = 256 * MIB
    """Bodies of all waiting requests."""
    max_wait_s: Seconds = 60.0
    ageing_s: Seconds = 20.0
    """A tier in which somebody has waited so long gets slots whatever waits in higher ones."""
    tenant_weights: Annotated[dict[str, Weight], Field(max_length=10_000)] = {}
    """Tenants' shares beside each other; those not named have 1."""


class DispatchTable(SettingsTable):
    """Time budgets, attempts, policy."""

    policy: str = "cost"
    """How deployments are chosen, where ``policies`` says nothing else of a model."""
    policies: Annotated[dict[str, str], Field(max_length=10_000)] = {}
    """Model to policy."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    first_byte_s: Seconds = 600.0
    """For an engine's first byte; answers in one piece are computed within it."""
    idle_s: Seconds = 300.0
    """Longest silence in a response."""
    total_s: Seconds = 3600.0
    reconnect_grace_s: Seconds = 5.0
    """How long requests are held for a model whose last agent went away."""
    failover_after_s: Seconds = 3.0
    """Without its tunnel for so long, an agent loses requests it has not begun to answer to another."""
    continue_after_s: Seconds = 5.0
    """The same for answers that have begun and can go on elsewhere."""
    stall_s: Seconds = 10.0
    """Least silence within an answer that counts as a stall, whatever its rhythm was."""
    record_bytes: Annotated[int, Field(ge=4096, le=1024 * MIB)] = MIB
    """Longest answer that is kept so that another agent can go on with it."""
    records_total_bytes: Annotated[int, Field(ge=4096)] = 64 * MIB
    """The same for all answers that are kept together."""
    unread_bytes: Annotated[int, Field(ge=0)] = 256 * MIB
    """Memory for what clients have not read of their answers; a tenant may hold half of what others leave."""
    unread_disk_bytes: Annotated[int, Field(ge=0)] = 4096 * MIB
    """The same on disk, for what memory has no room for; 0: none."""
    unread_directory: Path | None = None
    """Where that file is; the default is the directory of the state."""
    least_read_bytes_s: Annotated[float, Field(ge=0, le=1_000_000_000)] = 65_536.0
    """Who reads less while an engine waits for it, and others for the engine, is cut off; 0: nobody."""
    held_up_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """For so long an answer may keep others waiting whose engine waits for its reader; 0: for ever."""
    slow_start_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """How long the slots of a new or recovered deployment ramp up; 0 for not at all."""
    retry_share: Share = 0.2
    """Retries after failures, as a share of requests; ten a second are always allowed."""
    hedge_share: Share = 0.02
    """Second copies of late realtime requests, as a share of requests; 0 for none."""
    reserved_share: Share = 0.1
    """Slots that realtime requests get at once; whatever has borrowed them gives way."""
    preempt_batch: bool = True
    """Batch requests that run give way to realtime ones that wait."""
    preempt_standard: bool = False
    """Standard ones do, too."""
    preempt_after_s: Annotated[float, Field(ge=0, le=3600)] = 0.5
    """A realtime request that would wait for less than this preempts nothing."""
    max_preemptions: Annotated[int, Field(ge=0, le=100)] = 2
    """So often one request gives way at most."""

    @model_validator(mode="after")
    def _one_answer_fits(self) -> "DispatchTable":
        if self.record_bytes > self.records_total_bytes:
            raise ValueError("dispatch.record_bytes is more than dispatch.records_total_bytes")
        return self


class PlacementTable(SettingsTable):
    """Models that agents load when they are asked for."""

    enabled: bool = True
    """Have agents load and unload them."""
    hold_s: Seconds = 300.0
    """A request waits for its model to be loaded for so long at most."""
    min_residence_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """A model stays loaded for so long at least."""
    load_timeout_s: Seconds = 600.0
    """A load that takes longer has failed."""
    pinned: Annotated[list[str], Field(max_length=10_000)] = []
    """Models, as shell patterns, that are never unloaded for others."""


class AgentsTable(SettingsTable):
    """Bounds on agents."""

    max_agents: Count = 4096
    max_strangers: Count = 1024
    """Connections that have not proved who they are."""
    certificate_days: Annotated[float, Field(ge=1 / 24, le=366)] = 90.0
    """How long an agent's certificate lasts. Connected agents get a fresh one in its last third; who is away
    for longer must join again."""


class ReuseRule(SettingsTable):
    """What may be reused of one model's deterministic answers."""

    cache_s: Annotated[float, Field(ge=0, le=2_592_000)] = 0.0
    """So long an answer is kept; 0 for not at all."""
    coalesce: bool = True
    """Identical requests that come while one runs wait for its answer."""


class ReuseTable(SettingsTable):
    """Answers that serve more than one request of a tenant."""

    models: Annotated[dict[str, ReuseRule], Field(max_length=10_000)] = {}
    """Model to rule; those not named are not reused."""
    by_header: bool = False
    """Clients may ask for it, where no rule is, with x-trunkline-cache: allow."""
    header_cache_s: Annotated[float, Field(gt=0, le=2_592_000)] = 3600.0
    """How long an answer is kept then."""
    cache_bytes: Annotated[int, Field(ge=MIB)] = 64 * MIB
    """Memory for all of them."""
    entry_bytes: Annotated[int, Field(ge=1024, le=256 * MIB)] = MIB
    """Longest answer that is kept or shared."""
    entries: Count = 100_000
    followers: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Requests that wait for one."""

    @model_validator(mode="after")
    def _one_answer_fits(self) -> "ReuseTable":
        if self.entry_bytes > self.cache_bytes // 2:
            raise ValueError("reuse.entry_bytes is more than half of reuse.cache_bytes")
        return self


class MachineTable(SettingsTable):
    """When the machine counts as failing."""

    blocked_s: Annotated[float, Field(ge=0.1, le=3600)] = 1.0
    """An event loop that does not turn for so long is logged."""
    memory_share: Annotated[float, Field(ge=0.1, le=1)] = 0.9
    """Used, large request bodies are refused; half-way from here to full all are."""


class EnginesTable(SettingsTable):
    """Engines' own paths, /engines/…."""

    manage_role: Literal["viewer", "operator", "admin", "none"] = "operator"
    """What a key needs for the paths that manage an engine (load, delete, flush …); none: nothing."""
    manage: Annotated[dict[str, list[Rule]], Field(max_length=64)] = {}
    """Further paths that manage, by kind of engine or "*", each as "/path" or "POST,DELETE /path"."""
    allow: Annotated[dict[str, list[Rule]], Field(max_length=64)] = {}
    """Paths for every key though they are known to manage, written in the same way."""


class AuditTable(SettingsTable):
    """The log of who did what, and where it ran."""

    requests: bool = True
    """A record for every request of a client that is known; administrative acts have theirs anyway."""
    required: bool = False
    """Refuse requests while the log cannot be written; otherwise what finds no room is counted."""
    keep_days: Annotated[int, Field(ge=1, le=36_500)] = 400
    keep_bytes: Annotated[int, Field(ge=16 * MIB, le=1024 * 1024 * MIB)] = 10 * 1024 * MIB
    """Beyond, the oldest go even if they are younger."""
    buffer_records: Annotated[int, Field(ge=100, le=10_000_000)] = 50_000
    """Waiting for the disk."""


class RecordsTable(SettingsTable):
    """Decision records in memory: why requests waited, and why they went where they went."""

    recent: Annotated[int, Field(ge=0, le=100_000)] = 2000
    """The latest requests; 0: no records are kept."""
    slow: Annotated[int, Field(ge=1, le=100_000)] = 500
    """Besides these so many whose answers began late."""
    failed: Annotated[int, Field(ge=1, le=100_000)] = 500
    """Besides these so many that failed."""
    slow_s: Seconds = 5.0
    """An answer begins late so long after its request's arrival."""


class LogTable(SettingsTable):
    level: Literal["debug", "info", "warning", "error"] = "info"
    style: Literal["auto", "json", "text"] = "auto"
    requests: bool = True
    """A line for every request."""
    kept_bytes: Annotated[int, Field(ge=64 * 1024, le=1024**3)] = 8 * 1024 * 1024
    """Each process keeps its latest lines in memory for ``trunkline logs``, so many bytes together."""


class Settings(SettingsTable):
    """Everything that can be set; handed down in slices."""

    listen: ListenAddress = DEFAULT_LISTEN
    """HOST:PORT for clients and agents."""
    workers: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = 1
    """Processes that serve, all at the same address; auto: one for each core."""
    worker_silence_s: Annotated[float, Field(ge=0, le=86_400)] = 15.0
    """One of several workers that gives no sign of life for so long is killed and started again, at least 5;
    0: it is not."""
    worker_start_s: Annotated[float, Field(ge=0, le=86_400)] = 120.0
    """One of several workers that does not serve so long after its start is killed and started again, at
    least 5; 0: it is not. The first of all has five times as long, for the store's tables may have to be
    brought up to date."""
    state: Path | None = None
    """Directory of the durable state; the default depends on the user (``trunkline gateway --help``)."""
    behind_tls_terminator: bool = False
    """Something in front of this gateway ends TLS, so it may listen beyond loopback without."""
    trusted_proxies: Networks = []
    """Networks of proxies that say truly whom they pass on; from all others such headers are ignored."""
    trusted_proxy_header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for"
    """Where they say it; the other one is ignored, for a proxy that writes one passes on the other unread."""
    drain_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """How long streams may go on once the gateway was told to stop."""
    shared: Annotated[SecretStr, Field(max_length=2000)] | None = None
    """Where gateways keep limits together: redis://, rediss://, valkey://, unix://, postgresql://, sqlite://."""
    shared_processes: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many gateways have the same ``shared``; while it is away, each has this part of every limit."""
    tls: TlsTable = TlsTable()
    http: HttpTable = HttpTable()
    queue: WaitingTable = WaitingTable()
    dispatch: DispatchTable = DispatchTable()
    placement: PlacementTable = PlacementTable()
    scaling: ScalingTable = ScalingTable()
    reuse: ReuseTable = ReuseTable()
    agents: AgentsTable = AgentsTable()
    cluster: ClusterTable = ClusterTable()
    uplink: UplinkTable = UplinkTable()
    regions: RegionsTable = RegionsTable()
    machine: MachineTable = MachineTable()
    oidc: Annotated[list[OidcTable], Field(max_length=16)] = []
    """Issuers whose tokens let clients in."""
    engines: EnginesTable = EnginesTable()
    audit: AuditTable = AuditTable()
    records: RecordsTable = RecordsTable()
    jobs: JobsTable = JobsTable()
    store: StoreTable = StoreTable()
    log: LogTable = LogTable()
    metrics: MetricsTable = MetricsTable()
    otel: OtelTable = OtelTable()

    @field_validator("oidc")
    @classmethod
    def _are_different(cls, value: list[OidcTable]) -> list[OidcTable]:
        if len({each.issuer for each in value}) != len(value):
            raise ValueError("two of them are the same issuer")
        return value

    @field_validator("worker_silence_s", "worker_start_s")
    @classmethod
    def _is_no_mere_delay(cls, value: float) -> float:
        if 0 < value < LEAST_SILENCE_S:
            raise ValueError(f"less than {LEAST_SILENCE_S:g} is too short to tell a worker that hangs")
        return value

    @model_validator(mode="after")
    def _cluster_key_has_store(self) -> "Settings":
        if self.cluster.key is not None and self.store.url is None:
            raise ValueError("cluster.key needs store.url")
        return self

    @property
    def store_address(self) -> StoreAddress | None:
        """Where the store is; None: in the state directory."""
        store = self.store
        if store.url is None:
            return None
        return StoreAddress(store.url, self.cluster.key, store.password_file, store.stale_s)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        return split_address(self.listen)
