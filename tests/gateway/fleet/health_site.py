"""An index of deployments with its health, on a loop under the test's control."""

from typing import Any

from gateway.domain.request import Principal, Request, RequestBody
from gateway.fleet.deployment import Deployment
from gateway.fleet.health import FleetHealth
from gateway.fleet.model_index import ModelIndex
from gateway.observability.metrics import Metrics
from gateway.scheduling.health import HealthSettings
from gateway.scheduling.health.failover import Trouble
from tests.gateway.fleet.manual_timers import Loop


class Tunnel:
    """A session as far as deployments need one."""

    def __init__(self) -> None:
        self.endpoint: Any = None
        self.full = self.closed = self.suspended = self.tells_gpu_s = self.tells_others = False
        self.takes_work = True
        self.model_memory_bytes: int | None = None
        self.deployments: dict[str, Deployment] = {}

    def set_full(self, full: bool) -> None:
        self.full = full

    def end(self) -> None:
        self.takes_work = False

    def stream_closed(self, deployment: Deployment) -> None:
        pass


class Site:
    """An index, the health of what is in it, and requests that take slots and give them back."""

    def __init__(self, slow_start_s: float = 30.0) -> None:
        self.loop = Loop()
        self.metrics = Metrics()
        self.metrics.know_model("m")
        self.index = ModelIndex(self.loop, 100)
        self.index.learn("m", 0.0)
        self.health = FleetHealth(
            self.index, self.loop, self.metrics, HealthSettings(slow_start_s=slow_start_s), lambda: 0.0
        )
        self.running: list[tuple[Deployment, Request]] = []
        self._numbers = 0

    def join(self, agent: str, slots: int = 8, **more: Any) -> Deployment:
        deployment = Deployment(
            key=f"{agent}/d",
            agent=agent,
            model="m",
            routes=frozenset({"chat"}),
            slots=slots,
            id="d",
            session=Tunnel(),
            **more,
        )
        self.index.update(deployment)
        self.settle()
        return deployment

    def leave(self, deployment: Deployment) -> None:
        deployment.listed = False
        self.index.update(deployment)
        self.settle()

    def request(self, streaming: bool = True) -> Request:
        self._numbers += 1
        body = RequestBody(b"{}")
        principal = Principal("k", "key", "t")
        id_ = f"r{self._numbers}"
        return Request(id_, principal, "POST", "/", (), "m", "chat", streaming, body, 0.0, "chat")

    def take(self, deployment: Deployment, request: Request | None = None) -> Request:
        request = request or self.request()
        self.index.take(deployment, 1.0)
        self.health.taken(deployment, request)
        self.running.append((deployment, request))
        return request

    def give_back(self, deployment: Deployment, request: Request) -> None:
        self.running.remove((deployment, request))
        self.health.released(deployment, request)
        self.index.give_back(deployment, 1.0, 1.0)
        self.settle()

    def succeed(
        self, deployment: Deployment, first_byte_s: float = 0.2, request: Request | None = None
    ) -> None:
        request = self.take(deployment, request)
        self.health.answered(deployment, request, self.now)
        self.health.succeeded(deployment, request, first_byte_s, first_byte_s + 1.0, 1000, self.now)
        self.give_back(deployment, request)

    def fail(
        self, deployment: Deployment, trouble: Trouble, times: int = 1, request: Request | None = None
    ) -> None:
        for _ in range(times):
            each = self.take(deployment, request)
            self.health.failed(deployment, each, trouble, self.now)
            self.give_back(deployment, each)

    @property
    def now(self) -> float:
        return self.loop.now_s

    def settle(self) -> None:
        while self.loop.turn():
            pass

    def advance(self, by_s: float) -> None:
        self.settle()
        self.loop.advance(by_s)
        self.settle()

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)
