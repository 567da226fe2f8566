"""What one decision costs: a request is let in, given to one of many deployments, and its slot comes back.

With the fleet's health watched and without, in turns in one run; told are the best of each and their ratio.
"""

import time
from dataclasses import dataclass
from typing import Any

from gateway.dispatch.admission import Admission
from gateway.domain.request import Principal, Request, RequestBody
from gateway.fleet.deployment import Deployment
from gateway.fleet.health import FleetHealth
from gateway.fleet.model_index import ModelIndex
from gateway.observability.metrics import Metrics
from gateway.scheduling import policy_named
from gateway.scheduling.base import PendingRequest
from gateway.scheduling.health import HealthSettings
from gateway.scheduling.queue.waiting_room import QueueSettings, WaitingRoom
from tests.gateway.fleet.manual_timers import Loop

ROUNDS = 5


class _Tunnel:
    endpoint: Any = None
    full = closed = suspended = tells_gpu_s = tells_others = False
    takes_work = True
    model_memory_bytes: int | None = None

    def __init__(self) -> None:
        self.deployments: dict[str, Deployment] = {}

    def set_full(self, full: bool) -> None: ...
    def end(self) -> None: ...
    def stream_closed(self, deployment: Deployment) -> None: ...


class _Site:
    def __init__(self, deployments: int, watched: bool) -> None:
        self.loop = Loop()
        self.index = ModelIndex(self.loop, 10)
        self.index.learn("m", 0.0)
        if watched:
            FleetHealth(self.index, self.loop, Metrics(), HealthSettings(), lambda: 0.0)
        for number in range(deployments):
            name, routes = f"agent-{number:04}", frozenset({"chat"})
            each = Deployment(
                key=f"{name}/d", agent=name, model="m", routes=routes, slots=8, id="d", session=_Tunnel()
            )
            self.index.update(each)
        self.room = WaitingRoom(QueueSettings())
        self.admission = Admission(self.index, self.room, 5.0)
        self.policy = policy_named("least-outstanding")
        self.loop.advance(60.0)

    def decide(self, times: int) -> float:
        """Microseconds for each of ``times`` decisions."""
        principal, now = Principal("k", "key", "t"), self.loop.now_s
        began_s = time.perf_counter()
        for number in range(times):
            body = RequestBody(b"{}")
            request = Request(str(number), principal, "POST", "/", (), "m", "chat", True, body, now, "chat")
            ticket = self.admission.admit(request, now)
            open_now = self.index.open("m")
            waiting = [PendingRequest(ticket.number, "chat", ticket.work, now)]
            (chosen,) = self.policy.assign(waiting, list(open_now.values()), now)
            self.room.leave(ticket, now, departed=True)
            deployment = open_now[chosen.key]
            self.index.take(deployment, ticket.work)
            self.index.give_back(deployment, ticket.work, 1.0)
        return (time.perf_counter() - began_s) / times * 1e6


@dataclass(frozen=True, slots=True)
class Figures:
    deployments: int
    bare_us: float
    watched_us: float

    def __str__(self) -> str:
        return (
            f"{self.deployments} deployments: {self.watched_us:.0f} us a decision, "
            f"{self.bare_us:.0f} us without health, ratio {self.watched_us / self.bare_us:.2f}"
        )


def run(deployments: int = 1000, decisions: int = 1000) -> Figures:
    bare, watched = _Site(deployments, watched=False), _Site(deployments, watched=True)
    times = [(bare.decide(decisions), watched.decide(decisions)) for _ in range(ROUNDS)]
    return Figures(deployments, min(each for each, _ in times), min(each for _, each in times))
