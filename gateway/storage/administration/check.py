"""Whether a store on a server can be used: reached, of the right version, permitted, sound."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import func, select

from gateway.domain.store_address import StoreAddress
from gateway.storage import schema
from gateway.storage.errors import IdentityUnusable, RecordError, StateError
from gateway.storage.postgres import PostgresDatabase, PostgresFacts, inspect_server
from gateway.storage.store import Store

MOST_SKEW_S = 5.0
"""Between the clock of the server and of this host: leases and ends of keys are on the server's."""


@dataclass(frozen=True)
class CheckReport:
    """What was looked at, what is to be known, and what is wrong."""

    facts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    """By table."""

    @property
    def sound(self) -> bool:
        return not self.findings


def check_store(state_dir: Path, address: StoreAddress, wall: Callable[[], float] = time.time) -> CheckReport:
    """Look, and change nothing. Raises StateError when the server cannot be asked at all."""
    report = CheckReport()
    before_s = wall()
    server = inspect_server(address)
    after_s = wall()
    report.facts.append(
        f"{address}: PostgreSQL {server.server}, schema {server.namespace}, user {server.user}"
    )
    _check_clock(report, server, before_s, after_s)
    if server.standby:
        report.findings.append("the server is a standby: it takes no writes")
    if not _check_version(report, server):
        return report
    report.findings.extend(f"the user may not {what}" for what in server.not_permitted)
    if not server.not_permitted:
        with Store.open(state_dir, create=False, address=address) as store:
            report.findings.extend(_findings_of(store, report))
    return report


def _check_clock(report: CheckReport, server: PostgresFacts, before_s: float, after_s: float) -> None:
    """What the answer's way took is no skew."""
    skew_s = max(before_s - server.clock_s, server.clock_s - after_s, 0.0)
    report.facts.append(f"clocks of server and host: {skew_s:.1f} s apart, or less")
    if skew_s > MOST_SKEW_S:
        report.findings.append(
            f"the clocks of the server and of this host are {skew_s:.1f} s apart: set both by NTP"
        )


def _check_version(report: CheckReport, server: PostgresFacts) -> bool:
    """Whether this program can read the tables as they are."""
    present = schema.SCHEMA_VERSION
    if server.version == 0:
        report.findings.append("there are no tables yet: run trunkline store migrate, or start a gateway")
        return False
    report.facts.append(f"schema {server.version}, for programs of schema {server.min_reader} and later")
    if server.version < present:
        report.findings.append(
            f"the tables are of schema {server.version}, and this program's are of {present}: run "
            "trunkline store migrate, or start a gateway"
        )
        return False
    if server.min_reader > present:
        report.findings.append(f"the tables are for later programs; this one is of schema {present}")
        return False
    if not server.may_create:
        report.notes.append("the user may create no tables here: a later version's migration needs that")
    return True


def _findings_of(store: Store, report: CheckReport) -> Iterator[str]:
    """Reads every record but usage, as a gateway does."""
    database = store.database
    assert isinstance(database, PostgresDatabase)
    with database.read() as connection:
        for table in schema.metadata.sorted_tables:
            report.rows[str(table.name)] = connection.execute(
                select(func.count()).select_from(table)
            ).scalar_one()
        for topic, table in ((schema.Topic.KEYS, schema.keys), (schema.Topic.AGENTS, schema.agents)):
            highest = connection.execute(select(func.max(table.c.revision))).scalar() or 0
            if highest > schema.read_revision(connection, topic):
                yield (
                    f"{table.name} has rows of revision {highest}, later than the counter of {topic.value}: "
                    "gateways will miss changes; restore a backup that is of one moment"
                )
    for name, read in (
        ("keys", store.keys.list),
        ("tokens", store.tokens.list),
        ("agents", store.agents.list),
        ("aliases", store.aliases.list),
        ("tenants", store.limits.tenants.list),
        ("prices", store.limits.prices.list),
    ):
        try:
            read()
        except (StateError, RecordError, ValueError, TypeError) as error:
            yield f"{name} cannot be read: {error}"
    yield from _findings_of_identity(store, report)


def _findings_of_identity(store: Store, report: CheckReport) -> Iterator[str]:
    if not store.identity.is_made():
        report.notes.append("the gateway's key is not made yet: the first gateway does that")
        return
    try:
        report.facts.append(f"the gateway's key is {store.gateway_identity.id}")
    except IdentityUnusable as error:
        yield str(error)
