"""How long a policy takes to choose: one slot of many is free, many wait, and each choice is carried out.

The fleet is three quarters busy on two classes of device, and has read the prompts of what runs there, unless
it is to be ``reading``: then every other device has enough to read, and requests are held for it. Half of the
prompts share a beginning with others. Told are quantiles over decisions, in microseconds of processor time.
"""

import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from gateway.scheduling.base import DeploymentView, Outcome, PendingRequest
from gateway.scheduling.scheduler import Scheduler

SLOTS = 16
BUSY = 12

TIMES = 5
"""Each decision is made so often, and its fastest time counts: the policy's, not that of what else the
machine does."""


@dataclass(frozen=True, slots=True)
class Figures:
    policy: str
    deployments: int
    waiting: int
    p50_us: float
    p99_us: float
    reading: bool = False

    def __str__(self) -> str:
        return (
            f"{self.policy}: {self.deployments} deployments{', half of them reading' * self.reading}, "
            f"{self.waiting} waiting: "
            f"p50 {self.p50_us:.0f} us, p99 {self.p99_us:.0f} us a decision"
        )


class _Queue(list[PendingRequest]):
    """Counts the requests that are looked at: each is a decision, be it to wait."""

    seen = 0

    def __iter__(self) -> Iterator[PendingRequest]:
        for item in super().__iter__():
            self.seen += 1
            yield item


class _Site:
    def __init__(self, policy: str, deployments: int, *, reading: bool) -> None:
        self.reading = reading
        self.random = random.Random(7)
        self.scheduler = Scheduler(policy)
        self.numbers = count(1)
        self.now = 0.0
        self.running: dict[str, list[int]] = {}
        self.views = [
            DeploymentView(
                f"agent-{number:04}/d",
                f"agent-{number:04}",
                "m",
                frozenset({"chat"}),
                SLOTS,
                device="NVIDIA H100 80GB HBM3" if number % 2 else "NVIDIA L4",
            )
            for number in range(deployments)
        ]
        for view in self.views:
            self.scheduler.deployment_added(view, 0.0)
            self.running[view.key] = []
            for _ in range(BUSY):
                self.place(self.item(), view)
        self.by_key = {view.key: view for view in self.views}

    def item(self) -> PendingRequest:
        length = self.random.randint(1, 40)
        family = self.random.randint(1, 200)
        shared = tuple(family * 1000 + block for block in range(length // 2))
        number = next(self.numbers)
        own = tuple(-number * 1000 - block for block in range(length - len(shared)))
        return PendingRequest(
            number,
            "chat",
            1.0,
            self.now,
            input_tokens=length * 256,
            output_tokens=self.random.randint(1, 500),
            prefix=shared + own,
        )

    def place(self, item: PendingRequest, view: DeploymentView) -> None:
        self.scheduler.placed(item, view, self.now)
        view.in_flight += 1
        self.running[view.key].append(item.number)
        if not (self.reading and int(view.agent[6:]) % 4 < 2):
            self.scheduler.first_token(item.number, view, self.now)

    def finish_one(self, view: DeploymentView) -> None:
        number = self.running[view.key].pop(0)
        view.in_flight -= 1
        self.scheduler.finished(number, view, Outcome(True, 2.0, 0.5, 1000, 50, 0), self.now)

    def decide(self, waiting: _Queue, open_now: list[DeploymentView]) -> float:
        """Seconds for each decision of one call."""
        took_s = float("inf")
        for _ in range(TIMES):
            waiting.seen = 0
            began_s = time.thread_time()
            assignments = self.scheduler.assign("m", waiting, open_now, self.now)
            took_s = min(took_s, time.thread_time() - began_s)
        by_number = {each.number: each for each in list.__iter__(waiting)}
        for each in assignments:
            view = self.by_key[each.key]
            self.place(by_number[each.number], view)
            self.now += 0.001
            self.finish_one(view)
        return took_s / max(1, waiting.seen)


def measure(policy: str, deployments: int, waiting: int, rounds: int, *, reading: bool = False) -> Figures:
    """``waiting`` 1 is a request that comes while slots are free; more is a queue that stands while one slot
    at a time comes free."""
    site = _Site(policy, deployments, reading=reading)
    queue = _Queue(site.item() for _ in range(waiting))
    if waiting > 1:
        for view in site.views:
            view.slots = view.in_flight
    gc.collect()
    gc.disable()  # the gateway looks for garbage seldom, and not in a decision
    try:
        times = _times(site, queue, rounds)
    finally:
        gc.enable()
    times.sort()
    return Figures(
        policy,
        deployments,
        waiting,
        times[len(times) // 2] * 1e6,
        times[int(0.99 * len(times))] * 1e6,
        reading,
    )


def _times(site: _Site, queue: _Queue, rounds: int) -> list[float]:
    times: list[float] = []
    waiting, deployments = len(queue), len(site.views)
    for number in range(rounds):
        queue = _Queue([*queue[1:], site.item()])
        if waiting > 1:
            view = site.views[number % deployments]
            view.slots += 1
            times.append(site.decide(queue, [view]))
            view.slots -= 1
        else:
            times.append(site.decide(queue, site.views))
    return times


def run(rounds: int) -> list[Figures]:
    """Of ``cost``: fleets of several sizes, alone and with a thousand waiting."""
    return [
        *(measure("cost", size, waiting, rounds) for waiting in (1, 1000) for size in (10, 64, 100, 1000)),
        *(measure("cost", size, 64, rounds, reading=True) for size in (10, 64)),
    ]
