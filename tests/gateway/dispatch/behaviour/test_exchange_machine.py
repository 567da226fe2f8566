"""Requests under anything that may happen to their engines and tunnels, in any order.

Whatever happens a client gets the very answer that an undisturbed engine gives, or an error; never something
else, and never half of it as if it were the whole.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from gateway.dispatch import assignment as binding
from gateway.dispatch import response
from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.dispatch.exchange import ExchangeState
from gateway.dispatch.preemption import _without
from gateway.dispatch.scheduler_adapter import SchedulerAdapter
from gateway.domain.request import RequestBody, Tier
from gateway.domain.residency import Residency, read_where
from shared.protocol.errors import ErrorCode
from shared.protocol.limits import MIB
from shared.protocol.messages import DeploymentState, UsageMode
from tests.gateway.dispatch.behaviour.fleet_machine import (
    SETTINGS,
    FleetMachine,
    pick_of,
    picks,
)
from tests.gateway.dispatch.behaviour.reading_clients import ReadingClients
from tests.gateway.dispatch.behaviour.wayward_engine import CHAT_BODY, Engine
from tests.gateway.dispatch.response_buffers.behaviour.workers import HeldWorker, Opened, space
from tests.gateway.fleet.fleet import FakeAgent
from tests.gateway.fleet.tunnels import resume, suspend, suspended

CODES = [
    ErrorCode.REFUSED,
    ErrorCode.ENGINE_UNREACHABLE,
    ErrorCode.ENGINE_FAILED,
    ErrorCode.ENGINE_TIMEOUT,
    ErrorCode.DRAINING,
    ErrorCode.OVERLOADED,
    ErrorCode.CANCELLED,
    ErrorCode.INTERNAL,
    ErrorCode.TOO_LARGE,
]
WHERE = [None, None, read_where("region=eu"), read_where("region=us"), read_where("region=eu,region=us")]


class Alarmed:
    """In place of a log: what is said there is a fault of the code."""

    def exception(self, event: str, **_: Any) -> None:
        raise


class Life(FleetMachine):
    """Tunnels go and come back, agents vanish, engines fail in every way, clients come, read and leave."""

    def __init__(self) -> None:
        super().__init__(
            queue=QueueSettings(max_wait_s=20),
            settings=DispatchSettings(
                first_byte_s=15,
                idle_s=12,
                total_s=120,
                reconnect_grace_s=3,
                rest_s=0.5,
                rest_max_s=2,
                stall_s=5,
                slow_start_s=0,
                preempt_after_s=0.0,
                reserved_share=0.5,
                unread_bytes=4096,
                least_read_bytes_s=1e6,
            ),
        )
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(binding, "_log", Alarmed())
        self.patches.setattr(response, "HOLD_BACK_BYTES", 64)  # so that short answers are read ahead, too
        self.worker, self.files = HeldWorker(), Opened()
        clock = self.fleet.dispatcher.timers.time
        there = space(Path(tempfile.gettempdir()), MIB, worker=self.worker, clock=clock, opened=self.files)
        self.fleet.dispatcher.unread.spill_to(there)
        self.engines: dict[int, Engine] = {}
        self.readers = ReadingClients()
        for _ in range(20):
            self.fleet.dispatcher._answer_times.note("m", "chat", 1.0)
        for _ in range(500):
            self.fleet.dispatcher._hedges.deposit("tenant")

    # --- Agents and tunnels ---

    @initialize(policy=st.sampled_from(["cost", "least-outstanding", "round-robin"]))
    def there_are_agents(self, policy: str) -> None:
        dispatcher = self.fleet.dispatcher
        dispatcher.scheduling = SchedulerAdapter(self.fleet.registry.index, policy, self.fleet.loop.time)
        self.an_agent_connects("a", 2, "v1")
        self.an_agent_connects("b", 2, "v1")

    @rule(
        name=st.sampled_from("abc"),
        slots=st.integers(1, 2),
        version=st.sampled_from(["v1", "v1", "v2"]),
        region=st.sampled_from(["eu", "eu", "us"]),
    )
    def an_agent_connects(self, name: str, slots: int, version: str, region: str = "eu") -> None:
        claim = DeploymentState(
            "d", "m", version, routes=("chat", "any"), slots=slots, continues={"chat": "final_message"}
        )
        self.fleet.connect(name, claim, labels={"region": region})

    @precondition(lambda self: self.here)
    @rule(pick=picks)
    def a_tunnel_goes(self, pick: int) -> None:
        suspend(self.fleet, pick_of(self.here, pick))

    @precondition(lambda self: self.away)
    @rule(pick=picks)
    def a_tunnel_comes_back(self, pick: int) -> None:
        resume(self.fleet, pick_of(self.away, pick))

    @precondition(lambda self: self.here or self.away)
    @rule(pick=picks)
    def an_agent_is_lost(self, pick: int) -> None:
        self.fleet.cut(pick_of(self.here + self.away, pick))

    # --- Clients ---

    @rule(
        kind=st.sampled_from(["stream", "stream", "stream", "whole", "urgent", "urgent", "any"]),
        tier=st.sampled_from([Tier.STANDARD, Tier.BATCH]),
        where=st.sampled_from(WHERE),
    )
    def a_request_comes(self, kind: str, tier: Tier, where: Residency | None) -> None:
        request = self.fleet.request(
            route="any" if kind == "any" else "chat",
            streaming=kind == "stream",
            body=RequestBody(CHAT_BODY),
            tier=Tier.REALTIME if kind == "urgent" else tier,
            output_tokens=1000,
            usage=UsageMode.KEEP,
            where=where,
        )
        self.readers.clients.append(self.fleet.submit(request))

    @precondition(lambda self: self.readers.reading)
    @rule(pick=picks)
    def a_client_reads(self, pick: int) -> None:
        self.readers.read(pick_of(self.readers.reading, pick))
        self.fleet.settle()

    @precondition(lambda self: self.readers.present)
    @rule(pick=picks)
    def a_client_leaves(self, pick: int) -> None:
        self.readers.leave(pick_of(self.readers.present, pick))
        self.fleet.settle()

    @precondition(lambda self: self.worker.waiting)
    @rule(works=st.sampled_from([True, True, True, False]))
    def a_disk_works_or_fails(self, works: bool) -> None:
        self.files.broken_for = "" if works else "write"
        self.worker.step()
        self.files.broken_for = ""
        self.fleet.settle()

    # --- Engines ---

    @precondition(lambda self: self.working)
    @rule(pick=picks, size_bytes=st.sampled_from([1, 60, 150, 400, 9000]), now=st.booleans())
    def an_engine_says_more(self, pick: int, size_bytes: int, now: bool) -> None:
        pick_of(self.working, pick).send(size_bytes)
        if now:
            self.fleet.settle()  # otherwise it may be lost with the tunnel

    @precondition(lambda self: self.working)
    @rule(pick=picks, how=st.sampled_from(["head", "finish", "finish", "finish", "end", "busy"]))
    def an_engine_goes_on(self, pick: int, how: str) -> None:
        engine = pick_of(self.working, pick)
        steps: dict[str, Callable[[], None]] = {
            "head": engine.head,
            "finish": engine.finish,
            "end": engine.end,
            "busy": lambda: engine.head(busy=True),
        }
        steps[how]()
        self.fleet.settle()

    @precondition(lambda self: self.working)
    @rule(pick=picks, code=st.sampled_from(CODES))
    def an_engine_fails(self, pick: int, code: ErrorCode) -> None:
        pick_of(self.working, pick).fail(code)
        self.fleet.settle()

    @precondition(lambda self: self.unwanted)
    @rule(pick=picks)
    def an_engine_lets_go(self, pick: int) -> None:
        engine = pick_of(self.unwanted, pick)
        engine.over = True
        engine.stream.confirm()
        self.fleet.settle()

    @rule(by_s=st.sampled_from([0.6, 1.1, 3.1, 5.1, 16.0]))
    def time_passes(self, by_s: float) -> None:
        self.fleet.advance(by_s)

    # --- What always holds ---

    @invariant()
    def the_reserve_is_honoured(self) -> None:
        """While realtime requests wait that it is for, everybody who could give way does."""
        preemption, now = self.fleet.dispatcher._preemption, self.fleet.loop.now_s
        waiting = preemption._next_in_vain("m", now)
        lower = [attempt for alike in preemption._running.values() for attempt in alike]
        going = [each for each in lower if each.given_up]
        going += [attempt for alike in preemption._freeing.values() for attempt in alike]
        record = self.fleet.registry.index.models.get("m")
        if record is None or int(0.5 * record.slots) <= preemption._realtime["m"] + len(going):
            return
        for item in _without(waiting, going):
            for attempt in lower:
                view = attempt.deployment
                room = view.usable and view.in_flight <= min(view.slots, view.cap) and not attempt.given_up
                fits = view.suits(item.fit)
                fits = fits and view.key not in item.avoid
                assert not (room and fits), (item, view.key)

    @invariant()
    def who_gives_way_is_known_as_long_as_its_slot_is_taken(self) -> None:
        preemption = self.fleet.dispatcher._preemption
        there = {
            stream.handler
            for session in self.fleet.registry.sessions
            for stream in session.endpoint.streams.values()
        }
        for kept in (preemption._running, preemption._freeing):
            assert all(attempt in there for attempts in kept.values() for attempt in attempts)
        assert all(each.request.preempted <= 2 for each in self.readers.clients)

    @invariant()
    def nothing_runs_where_it_may_not(self) -> None:
        by_id = {each.request.id: each.request for each in self.readers.clients}
        for agent in self.fleet.agents:
            for stream in agent.streams:
                where = by_id[stream.head.request_id].where
                assert where is None or where.allows(agent.labels)

    @invariant()
    def who_is_open_where_is_known(self) -> None:
        record = self.fleet.registry.index.models.get("m")
        for where in WHERE:
            if record is not None and where is not None:
                there = {key: each for key, each in record.open.items() if where.allows(each.labels)}
                assert record.open_there(where) == there

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        assert all(len(client.outcomes) <= 1 for client in self.readers.clients)

    @invariant()
    def who_waits_has_a_ticket_and_who_does_not_has_none(self) -> None:
        dispatcher = self.fleet.dispatcher
        waiting = [each for each in dispatcher.exchanges.values() if each.ticket.waiting]
        assert dispatcher.room.requests == len(waiting)
        assert all(each.state is not ExchangeState.DONE for each in waiting)

    @invariant()
    def what_clients_have_is_the_answer_as_far_as_it_goes(self) -> None:
        self.readers.check_so_far()

    def teardown(self) -> None:
        """Tunnels come back and engines do their best: everything comes to its end, and nothing is left."""
        try:
            self._come_to_an_end()
        finally:
            left_open = self.files.open
            for file in self.files.files:
                file.close()
            self.patches.undo()
        assert left_open == 0
        self.readers.check_ends()
        self.assert_nothing_left()
        assert self.fleet.dispatcher.records.taken_bytes == 0

    def _come_to_an_end(self) -> None:
        for agent in self.away:
            resume(self.fleet, agent)
        self.worker.at_once = True
        self.worker.catch_up()
        for _ in range(200):
            for engine in self.unwanted:
                engine.over = True
                engine.stream.confirm()
            for engine in self.working:
                engine.finish()
            self.fleet.settle()
            for client in self.readers.reading:
                self.readers.read(client)
            self.fleet.advance(1.0)
            if not self.fleet.dispatcher.open_exchanges:
                break

    # --- Helpers ---

    @property
    def here(self) -> list[FakeAgent]:
        return [each for each in self.fleet.agents if not each.endpoint.closed and not suspended(each)]

    @property
    def away(self) -> list[FakeAgent]:
        return [each for each in self.fleet.agents if suspended(each)]

    def _open(self) -> list[Engine]:
        return [
            self.engines.setdefault(id(stream), Engine(stream, agent))
            for agent in self.here + self.away
            for stream in agent.open_streams
        ]

    @property
    def working(self) -> list[Engine]:
        return [each for each in self._open() if each.stream.reset_code is None and not each.over]

    @property
    def unwanted(self) -> list[Engine]:
        return [each for each in self._open() if each.stream.reset_code is not None]


TestLife = Life.TestCase
TestLife.settings = SETTINGS
