"""Decision records, with the slices of the settings that they get."""

import time

from gateway.dispatch.decisions.records import RecordSettings, RequestRecords
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.exchange import ExchangeState, RequestExchange
from gateway.runtime.config import Settings


def make_records(settings: Settings, dispatcher: Dispatcher) -> RequestRecords:
    """The records of this process; without ``records.recent`` they know only what waits or runs."""
    table = settings.records
    dispatcher.decisions.enabled = bool(table.recent)
    bounds = RecordSettings(**table.model_dump())

    def not_over() -> list[RequestExchange]:
        return [each for each in dispatcher.exchanges.values() if each.state is not ExchangeState.DONE]

    return RequestRecords(bounds, not_over, dispatcher.timers.time, time.time)
