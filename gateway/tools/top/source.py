"""Where ``trunkline top`` has its facts from: the stream of live events, read in a thread, and lists that are
asked for."""

import contextlib
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import orjson

from gateway.cli_support.event_stream import StreamEvent, StreamLost, follow_events
from gateway.cli_support.gateway_client import GatewayClient, GatewayFailed
from gateway.tools.top.live_fleet import FILLED_REQUESTS

Json = dict[str, Any]

EVENTS = "/admin/events"


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """An event of the stream."""

    name: str
    data: Json


@dataclass(frozen=True, slots=True)
class PastRequests:
    """What the gateway keeps of a kind of requests, ``recent``, ``slow`` or ``failed``, the latest first."""

    kind: str
    requests: list[Json]


News = FleetEvent | PastRequests | StreamLost


class FleetSource:
    """One gateway."""

    def __init__(self, client: GatewayClient) -> None:
        self._client = client
        self._stop = threading.Event()

    def news(self) -> Generator[News]:
        """What is told, until :meth:`stop`; behind each snapshot what the gateway keeps of requests. Raises
        GatewayFailed where the stream cannot be had at first."""
        try:
            for each in follow_events(self._client, EVENTS, self._stop.wait):
                if self._stop.is_set():
                    return
                yield each if isinstance(each, StreamLost) else _fleet_event(each)
                if isinstance(each, StreamEvent) and each.name == "snapshot":
                    yield from self.past()
        except GatewayFailed as error:
            raise plainly(error) from error

    def stop(self) -> None:
        """End it, with the next event at the latest."""
        self._stop.set()

    def kept(self, kind: str = "recent") -> list[Json]:
        """Requests of a kind: ``recent``, ``slow`` or ``failed``. Raises GatewayFailed."""
        found = self._client.get(f"requests?kind={kind}&limit={FILLED_REQUESTS}", "requests")
        return list(found["requests"])

    def record(self, request_id: str) -> Json:
        """The decision record of a request, with ``words``. Raises GatewayFailed."""
        return self._client.get(f"requests/{quote(request_id, safe='', errors='surrogateescape')}", "words")

    def past(self) -> Iterator[PastRequests]:
        """Those that are slow or failed may be older than the recent ones."""
        try:
            for kind in ("recent", "slow", "failed"):
                yield PastRequests(kind, self.kept(kind))
        except GatewayFailed:
            return  # a gateway without decision records, or one that ends: the stream says so


def _fleet_event(event: StreamEvent) -> FleetEvent:
    data = orjson.loads(event.data)
    return FleetEvent(event.name, data if isinstance(data, dict) else {})


def plainly(error: GatewayFailed) -> GatewayFailed:
    """The error, with what it means where a gateway does not know the stream."""
    if error.status != HTTPStatus.NOT_FOUND:
        return error
    said = (
        "this gateway is of a version without live events (/admin/events), which top shows; "
        "`trunkline status` and `trunkline models` can ask it"
    )
    return GatewayFailed(said, error.status)


def snapshot_of(client: GatewayClient) -> Iterator[FleetEvent | PastRequests]:
    """A snapshot and what is kept of requests, and no more. Raises GatewayFailed."""
    source = FleetSource(client)
    with contextlib.closing(source.news()) as news:
        for each in news:
            if isinstance(each, StreamLost):
                raise GatewayFailed(each.why, each.status)
            if isinstance(each, FleetEvent) and each.name == "snapshot":
                yield each
                break
    yield from source.past()
