"""Decision records, live events and the log for operators, with the slices of the settings that they get."""

import time

from gateway.api.admin.live.feed import EventFeed
from gateway.api.admin.live.page import EventsAdmin
from gateway.api.admin.live.state import ProcessState
from gateway.api.admin.logs.follow import LogFollowing
from gateway.api.admin.logs.page import LogsAdmin
from gateway.api.admin.logs.source import LogSource
from gateway.app.process_reads import ProcessReads
from gateway.dispatch.decisions.records import RecordSettings, RequestRecords
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.exchange import ExchangeState, RequestExchange
from gateway.observability.gauges import FamilyCollector
from gateway.observability.log_ring import LogRing
from gateway.runtime.config import Settings
from gateway.runtime.lifecycle import Lifecycle
from gateway.runtime.machine import MachineGuard
from gateway.storage import Store


def make_records(settings: Settings, dispatcher: Dispatcher) -> RequestRecords:
    """The records of this process; without ``records.recent`` they know only what waits or runs."""
    table = settings.records
    dispatcher.decisions.enabled = bool(table.recent)
    bounds = RecordSettings(**table.model_dump())

    def not_over() -> list[RequestExchange]:
        return [each for each in dispatcher.exchanges.values() if each.state is not ExchangeState.DONE]

    return RequestRecords(bounds, not_over, dispatcher.timers.time, time.time)


def make_events(
    dispatcher: Dispatcher,
    records: RequestRecords,
    store: Store,
    machine: MachineGuard,
    lifecycle: Lifecycle,
    process: str,
    reads: ProcessReads | None,
) -> EventsAdmin:
    """The page of live events, with its metrics."""

    def enrolled() -> list[str]:
        return [each.name for each in store.agents.list() if each.revoked_s is None]

    def troubles() -> dict[str, bool]:
        memory, disk = bool(machine.pressure.level), machine.disks.short
        return {"memory": memory, "descriptors": machine.descriptors.none_left, "disk": disk}

    registry = dispatcher.registry
    state = ProcessState(registry, dispatcher.room, records, process, enrolled, troubles)
    feed = EventFeed(state, reads, ends=lambda: lifecycle.draining)
    FamilyCollector(registry.metrics.registry, feed.figures)
    return EventsAdmin(feed)


def make_logs(ring: LogRing, lifecycle: Lifecycle, process: str, reads: ProcessReads | None) -> LogsAdmin:
    """The page of the log."""
    return LogsAdmin(LogFollowing(LogSource(ring), process, reads, ends=lambda: lifecycle.draining))
