"""A gateway in memory whose parent is the test."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from gateway.dispatch.placement import PlacementSettings
from gateway.domain.quotas import FREE
from gateway.observability.audit import RequestFacts
from gateway.quota.usage import UsageLedger
from gateway.uplink.capacity import UplinkCapacity
from gateway.uplink.load_wishes import DispatcherLoads
from gateway.uplink.runner import UplinkBooks, UplinkRunner
from gateway.uplink.tracing import UplinkTracing
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import RequestHead, ResponseHead, Trailers, Usage
from shared.protocol.progress import Progress
from shared.protocol.stream_handler import NO_HANDLER, StreamHandler
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment

OWN, PARENT = "0" * 16, "f" * 16
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@dataclass
class UpStream:
    """A stream of the uplink, as the parent sees it."""

    head: RequestHead
    handler: StreamHandler = NO_HANDLER
    heads: list[ResponseHead] = field(default_factory=list)
    data: bytes = b""
    trailers: Trailers | None = None
    ended: bool = False
    reset_with: tuple[ErrorCode, str] | None = None
    consumed_bytes: int = 0
    progress: list[Progress] = field(default_factory=list)

    def send_progress(self, progress: Progress) -> bool:
        self.progress.append(progress)
        return True

    def send_head(self, head: ResponseHead) -> None:
        self.heads.append(head)

    def send_data(self, data: bytes) -> bool:
        self.data += data
        return True

    def end(self, trailers: Trailers | None = None) -> None:
        self.ended, self.trailers = True, trailers

    def reset(self, code: ErrorCode, reason: str = "") -> None:
        self.reset_with = self.reset_with or (code, reason)

    def consumed(self, size_bytes: int) -> None:
        self.consumed_bytes += size_bytes


class Child:
    """A gateway whose parent is the test."""

    def __init__(
        self,
        *slots: int,
        labels: dict[str, str] | None = None,
        agreed: Collection[str] = (),
        placement: PlacementSettings | None = None,
        traces: UplinkTracing | None = None,
    ) -> None:
        """``agreed`` are the capabilities that are agreed on with the parent."""
        self.agreed = agreed
        self.fleet = fleet = Fleet(placement=placement)
        fleet.registry.gateway_id, fleet.registry.gateway_ids = lambda: OWN, lambda: frozenset((OWN,))
        dispatcher, index = fleet.dispatcher, fleet.registry.index
        self.capacity = UplinkCapacity(
            index,
            dispatcher.room.depth,
            lambda: OWN,
            lambda: [PARENT],
            dispatcher.timers,
            labels or {},
            DispatcherLoads(dispatcher),
            dispatcher.demand.look,
        )
        self.ledger, self.audited = UsageLedger(), list[RequestFacts]()
        books = UplinkBooks(
            self.ledger, fleet.metrics, self.audited.append, lambda model: FREE, traces=traces
        )
        self.runner = UplinkRunner(
            dispatcher, index, self.capacity, books, lambda: frozenset((OWN,)), labels or {}
        )
        self.agents = [fleet.connect(f"a{n}", deployment("m", each)) for n, each in enumerate(slots)]

    def ask(self, body: bytes = BODY, **more: object) -> UpStream:
        """A request of the parent, whole."""
        (group, *_) = self.capacity.state().deployments
        head = RequestHead(group.id, "POST", "/v1/chat/completions", (), "m", "r1", via=(PARENT,))
        for name, value in more.items():
            setattr(head, name, value)
        stream = UpStream(head)
        self.runner.open(self, stream, agreed=self.agreed)  # type: ignore[arg-type]
        stream.handler.on_data(body)
        stream.handler.on_end(None)
        self.fleet.settle()
        return stream

    async def answer(self, agent: FakeAgent, text: bytes = b'{"usage":null}') -> None:
        """The agent answers its oldest request."""
        stream = agent.open_streams[0]
        stream.stream.send_head(ResponseHead(200, (("content-type", "application/json"),)))
        stream.stream.send_data(text)
        stream.stream.end(Trailers(Usage(3, 2, 0), gpu_s=0.5))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(4):
            self.fleet.settle()
            await asyncio.sleep(0)
