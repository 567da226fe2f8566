"""Queue, registry and dispatch under anything that may happen, in any order: their books always balance."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from gateway.dispatch.assignment import SHUN_S
from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.dispatch.exchange import ExchangeState, RequestExchange
from gateway.dispatch.response import EngineResponse
from gateway.domain.request import RequestBody, Tier
from gateway.fleet.deployment import Deployment
from gateway.scheduling.health.failover import MOST_MOVES
from shared.protocol.credit import WindowSettings
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import AgentStatus, DeploymentStatus, Drain, ResponseHead, Trailers
from tests.gateway.dispatch.behaviour.fleet_machine import (
    SETTINGS,
    FleetMachine,
    now_or_never,
    pick_of,
    picks,
)
from tests.gateway.fleet.fleet import Client, EngineStream, FakeAgent, deployment

MODELS = ("m", "n")
ROUTES = ("chat", "embeddings", "any")
WINDOWS = WindowSettings(floor=1024, initial=4096, maximum=8192, session=64 * 1024, streams=4)
CODES = [code for code in ErrorCode if code not in (ErrorCode.NO_ERROR, ErrorCode.SESSION_LOST)]

deployments = st.lists(
    st.builds(
        lambda number, model, slots, routes, status: deployment(
            model, slots, id=f"d{number}", routes=tuple(routes), status=status
        ),
        st.integers(0, 2),
        st.sampled_from(MODELS),
        st.integers(0, 3),
        st.sets(st.sampled_from(ROUTES), min_size=2),
        st.sampled_from([DeploymentStatus.LOADED] * 8 + list(DeploymentStatus)),
    ),
    max_size=3,
    unique_by=lambda state: state.id,
)


class Books(FleetMachine):
    """Agents come, change, drain and go; clients come, read, stall and leave; engines do anything."""

    def __init__(self) -> None:
        super().__init__(
            queue=QueueSettings(max_requests=6, max_requests_total=8, max_wait_s=20),
            settings=DispatchSettings(
                first_byte_s=15,
                idle_s=10,
                total_s=40,
                reconnect_grace_s=3,
                rest_s=0.5,
                rest_max_s=2,
                preempt_after_s=0.0,
            ),
        )
        self.clients: list[Client] = []
        self.left: set[int] = set()
        """Clients, by identity, that cancelled before they were answered."""
        self.done: set[int] = set()
        """Clients that read their answer to its end or aborted it."""

    # --- Agents ---

    @initialize(slots=st.integers(0, 3))
    def there_is_an_agent(self, slots: int) -> None:
        self.fleet.connect("a", deployment("m", slots, id="d0"), deployment("n", slots, id="d1"))

    @rule(name=st.sampled_from("abc"), states=deployments, full=st.booleans())
    def an_agent_connects(self, name: str, states: list[Any], full: bool) -> None:
        self.fleet.connect(name, *states, windows=WINDOWS if full else None)

    @precondition(lambda self: self.connected)
    @rule(pick=picks, states=deployments, status=st.sampled_from([AgentStatus.READY] * 8 + list(AgentStatus)))
    def an_agent_says_something_else(self, pick: int, states: list[Any], status: AgentStatus) -> None:
        pick_of(self.connected, pick).serve(*states, status=status)
        self.fleet.settle()

    @precondition(lambda self: self.connected)
    @rule(pick=picks, really=st.integers(0, 3))
    def an_agent_drains(self, pick: int, really: int) -> None:
        if not really:
            pick_of(self.connected, pick).endpoint.send_drain(Drain("restart", 10.0))
            self.fleet.settle()

    @precondition(lambda self: self.connected)
    @rule(pick=picks)
    def a_tunnel_breaks(self, pick: int) -> None:
        self.fleet.cut(pick_of(self.connected, pick))

    # --- Clients ---

    @rule(
        model=st.sampled_from(MODELS),
        route=st.sampled_from(["chat", "chat", *ROUTES]),
        tier=st.sampled_from(Tier),
        streaming=st.booleans(),
        deadline_s=st.none() | st.floats(1, 30),
        size_bytes=st.sampled_from([2, 200_000]),
    )
    def a_request_comes(
        self, model: str, route: str, tier: Tier, streaming: bool, deadline_s: float | None, size_bytes: int
    ) -> None:
        request = self.fleet.request(
            model,
            route=route,
            tier=tier,
            streaming=streaming,
            output_tokens=1000,
            body=RequestBody(b"x" * size_bytes),
            deadline_s=None if deadline_s is None else self.fleet.loop.now_s + deadline_s,
        )
        self.clients.append(self.fleet.submit(request))

    @precondition(lambda self: self.unsettled)
    @rule(pick=picks)
    def a_client_leaves(self, pick: int) -> None:
        client = pick_of(self.unsettled, pick)
        client.cancel()
        self.left.add(id(client))
        self.fleet.settle()

    @precondition(lambda self: self.reading)
    @rule(pick=picks, abort=st.integers(0, 4))
    def a_client_reads_or_aborts(self, pick: int, abort: int) -> None:
        client = pick_of(self.reading, pick)
        if abort == 0:
            client.response.abort()
            self.done.add(id(client))
        else:
            self._read(client)
        self.fleet.settle()

    # --- Engines ---

    @precondition(lambda self: self.engine_streams)
    @rule(pick=picks, step=st.sampled_from(["head", "data", "data", "end", "end", "confirm"]))
    def an_engine_goes_on(self, pick: int, step: str) -> None:
        engine = pick_of(self.engine_streams, pick)
        if engine.reset_code is not None or step == "confirm":
            if engine.reset_code is not None:
                engine.confirm()
        else:
            self._answer(engine, step)
        self.fleet.settle()

    @precondition(lambda self: self.engine_streams)
    @rule(pick=picks, code=st.sampled_from(CODES))
    def an_engine_fails(self, pick: int, code: ErrorCode) -> None:
        pick_of(self.engine_streams, pick).stream.reset(code, "because")
        self.fleet.settle()

    @rule(by_s=st.sampled_from([0.1, 0.6, 3.0, 11.0]))
    def time_passes(self, by_s: float) -> None:
        self.fleet.advance(by_s)

    # --- What always holds ---

    @invariant()
    def no_slot_is_idle_while_fitting_work_waits(self) -> None:
        index = self.fleet.registry.index
        for exchange in self._waiting():
            fit = exchange.ticket.lane
            model, young = exchange.request.model, self.fleet.loop.now_s < exchange.ticket.entered_s + SHUN_S
            shunning = index.someone_else(model, fit) or (
                young and index.someone_else(model, fit, patiently=True)
            )
            avoid = fit.avoid if shunning else frozenset()
            for each in self.deployments():
                suits = (
                    each.model == exchange.request.model
                    and each.supports(fit.route)
                    and each.key not in avoid
                )
                assert not (suits and each.compute_usable() and each.free)

    @invariant()
    def the_index_is_what_a_scan_would_find(self) -> None:
        index, now = self.fleet.registry.index, self.fleet.loop.now_s
        for model, record in index.models.items():
            mine = [each for each in self.deployments() if each.model == model]
            serving = {each.key: each for each in mine if each.promising}
            assert record.serving == serving
            assert record.open == {key: each for key, each in serving.items() if each.free}
            assert record.slots == sum(_slots_of(each) for each in serving.values())
            assert (record.lost_s is None) == bool(serving)
            for asked, found in record.availabilities.items():
                assert found is index._availability(record, *asked)
            for each in mine:
                steady = each.compute_usable() and each.health is not None and each.health.steady(now)
                assert steady or not each.settled

    @invariant()
    def everybody_who_waits_is_in_the_room_and_within_its_bounds(self) -> None:
        dispatcher = self.fleet.dispatcher
        waiting = self._waiting()
        assert dispatcher.room.requests == len(waiting) == sum(dispatcher.room.depths().values())
        assert dispatcher.room.body_bytes == sum(len(each.request.body.prefix) for each in waiting)
        assert all(each.state is ExchangeState.WAITING and each.ticket.waiting for each in waiting)
        for model in MODELS:
            lanes = {each.ticket.lane for each in waiting if each.request.model == model}
            assert set(dispatcher.room.lanes(model)) == lanes

    @invariant()
    def nobody_is_answered_twice_nor_after_leaving(self) -> None:
        for client in self.clients:
            assert len(client.outcomes) <= (0 if id(client) in self.left else 1)
            assert len(client.request.attempts) <= MOST_MOVES + client.request.preempted
            assert client.request.preempted <= 2

    def teardown(self) -> None:
        """Whatever is still under way comes to its end; then nothing is left of it."""
        for _ in range(200):
            for engine in self.engine_streams:
                if engine.reset_code is not None:
                    engine.confirm()
                else:
                    self._answer(engine, "end")
            self.fleet.settle()
            for client in self.reading:
                self._read(client)
            self.fleet.advance(1.0)
            if not self.fleet.dispatcher.open_exchanges:
                break
        assert all(client.settled != (id(client) in self.left) for client in self.clients)
        self.assert_nothing_left()
        self.fleet.advance(400.0)
        assert not self.fleet.loop.pending, "a timer was left behind"
        assert not any(session.full for session in self.fleet.registry.sessions)
        assert not any(each.shut for each in self.deployments() if each.promising)

    # --- Helpers ---

    def _waiting(self) -> list[RequestExchange]:
        return [each for each in self.fleet.dispatcher.exchanges.values() if each.ticket.waiting]

    @property
    def connected(self) -> list[FakeAgent]:
        return [agent for agent in self.fleet.agents if not agent.endpoint.closed]

    @property
    def unsettled(self) -> list[Client]:
        return [each for each in self.clients if not each.settled and id(each) not in self.left]

    @property
    def reading(self) -> list[Client]:
        return [
            each
            for each in self.clients
            if each.outcomes and isinstance(each.outcomes[0], EngineResponse) and id(each) not in self.done
        ]

    @property
    def engine_streams(self) -> list[EngineStream]:
        return [each for agent in self.connected for each in agent.open_streams]

    def _read(self, client: Client) -> None:
        try:
            chunks = now_or_never(client.response.next_chunks)
        except Exception:
            self.done.add(id(client))
            client.response.abort()
            return
        if chunks == []:
            self.done.add(id(client))
        for chunk in chunks or ():
            client.response.consumed(len(chunk))

    @staticmethod
    def _answer(engine: EngineStream, step: str) -> None:
        if engine.ended:
            return
        if not engine.begun:
            engine.stream.send_head(ResponseHead(200, ()))
            engine.begun = True
        if step == "data" and engine.ready:
            engine.ready = engine.stream.send_data(b"t" * 3000)
        if step == "end":
            engine.stream.end(Trailers())
            engine.ended = True


def _slots_of(each: Deployment) -> int:
    """What requests may count on. Those of one that rests are used on until their requests end."""
    if each.trial or each.closing:
        return 0
    in_use = 0 if each.shut else min(each.in_flight, each.slots)
    return max(min(each.slots, each.cap), in_use)


TestBooks = Books.TestCase
TestBooks.settings = SETTINGS
