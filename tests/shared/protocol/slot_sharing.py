"""Gateway processes and an agent that divides its slots among them: messages take their time, in order.

The gateways do what PROTOCOL §4.7 says: they open streams up to the level they were told last, count one from
OPEN until they hear of its end, and say what waits.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from shared.protocol.demand import Demand
from shared.protocol.slot_shares import SlotShares

DEMAND_S = 1.0


class Clock:
    """Runs events in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, at_s: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, self._number, event))

    def run_until(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until_s


@dataclass(eq=False)
class Process:
    """One process of the gateway, and its line to the agent."""

    name: str
    agent: "SharingAgent"
    delay: Callable[[], float]
    """Seconds that a message takes one way."""
    weight: float = 1.0
    queue: deque[float] = field(default_factory=deque)
    """Seconds that each request which waits will run."""
    came_s: deque[float] = field(default_factory=deque)
    level: int = 0
    in_flight: int = 0
    said: int = 0
    """What the agent believes waits."""
    said_s: float = -inf
    opened: int = 0
    refused: int = 0
    begun: list[float] = field(default_factory=list)
    """How long each request waited until it was sent."""
    _says_later: bool = False
    _arrivals: dict[str, float] = field(default_factory=dict)

    def send(self, way: str, event: Callable[[], None]) -> None:
        """A message, which no later one of its direction overtakes."""
        clock = self.agent.clock
        arrives_s = max(clock.now + self.delay(), self._arrivals.get(way, 0.0))
        self._arrivals[way] = arrives_s
        clock.at(arrives_s, event)

    def request(self, runs_s: float, count: int = 1) -> None:
        """So many come in one turn of the event loop."""
        self.queue.extend([runs_s] * count)
        self.came_s.extend([self.agent.clock.now] * count)
        self.work()

    def work(self) -> None:
        """Opens what the level allows, and says what waits then."""
        while self.queue and self.in_flight < self.level:
            self.in_flight += 1
            self.opened += 1
            self.said = max(0, self.said - 1)
            self.begun.append(self.agent.clock.now - self.came_s.popleft())
            runs_s = self.queue.popleft()
            self.send("up", lambda runs_s=runs_s: self.agent.open(self, runs_s))  # type: ignore[misc]
        self._say()

    def _say(self) -> None:
        now, waiting = self.agent.clock.now, len(self.queue)
        if waiting == self.said:
            return
        if (waiting and not self.said) or now >= self.said_s + DEMAND_S:
            self.said, self.said_s = waiting, now
            oldest_s = now - self.came_s[0] if waiting else 0.0
            demand = Demand(waiting, 0, oldest_s, self.weight)
            self.send("up", lambda: self.agent.demand(self, demand))
        elif not self._says_later:
            self._says_later = True
            self.agent.clock.at(self.said_s + DEMAND_S, self._say_later)

    def _say_later(self) -> None:
        self._says_later = False
        self._say()

    def slots(self, level: int) -> None:
        self.level = level
        self.work()

    def ended(self) -> None:
        self.in_flight -= 1
        self.work()

    def refuse(self, runs_s: float) -> None:
        """It goes back to the head of the queue."""
        self.in_flight -= 1
        self.refused += 1
        self.queue.appendleft(runs_s)
        self.came_s.appendleft(self.agent.clock.now)
        self.work()


class SharingAgent:
    """The agent of one engine. ``check`` is called after everything that happens to it."""

    def __init__(self, limit: int, check: "Callable[[SharingAgent], None]" = lambda agent: None) -> None:
        self.clock = Clock()
        self.shares = SlotShares("engine", limit)
        self.processes: list[Process] = []
        self.most_running = 0
        self._told: dict[Process, int] = {}
        self._check = check
        self._look_s = inf

    def add(self, name: str, delay: Callable[[], float], weight: float = 1.0) -> Process:
        process = Process(name, self, delay, weight)
        self.processes.append(process)
        self.shares.add(process, name, self.clock.now)
        self.shares.set_rtt(process, 2 * delay())
        self._after()
        return process

    def remove(self, process: Process) -> None:
        """Its session is over; what ran is let go of at once."""
        running = self.shares.level(process) - self.shares.held(process)
        self.processes.remove(process)
        self.shares.remove(process, self.clock.now)
        for _ in range(running):
            self.shares.leave(process, self.clock.now)
        self._after()

    def set_limit(self, limit: int) -> None:
        self.shares.set_limit(limit, self.clock.now)
        self._after()

    def demand(self, process: Process, demand: Demand) -> None:
        if process in self.processes:
            self.shares.set_demand(process, demand, self.clock.now)
            self._after()

    def open(self, process: Process, runs_s: float) -> None:
        if process not in self.processes:
            return
        before = self.shares.running
        if self.shares.enter(process, self.clock.now):
            assert before < self.shares.limit, "a request began beyond the limit"
            self.clock.at(self.clock.now + runs_s, lambda: self._end(process))
        else:
            process.send("down", lambda: process.refuse(runs_s))
        self._after()

    def _end(self, process: Process) -> None:
        if process in self.processes:
            self.shares.leave(process, self.clock.now)
            self._after()  # its level leaves before the end of the stream
            process.send("down", process.ended)

    def _look(self) -> None:
        self._look_s = inf
        self.shares.look(self.clock.now)
        self._after()

    def _after(self) -> None:
        for process in self.processes:
            level = self.shares.level(process)
            if self._told.get(process) != level:
                self._told[process] = level
                process.send("down", lambda process=process, level=level: process.slots(level))  # type: ignore[misc]
        look_s = self.shares.next_look(self.clock.now)
        if look_s < self._look_s:
            self._look_s = look_s
            self.clock.at(look_s, self._look)
        self.most_running = max(self.most_running, self.shares.running)
        self._check(self)
