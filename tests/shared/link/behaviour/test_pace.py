"""However often engines change their mind, the gateway is sent no more than it takes."""

import asyncio
import itertools

import pytest

from agent.capacity.engine_registry import EngineRegistry
from shared.link.publisher import TICK_S, Publisher
from shared.protocol import limits
from shared.protocol.credit import AGENT_WINDOWS, GATEWAY_WINDOWS, own_limits
from shared.protocol.endpoint import SessionEndpoint, Stream
from shared.protocol.errors import ControlFrameFlood, ErrorCode
from shared.protocol.frames import TunnelRole
from shared.protocol.messages import AgentState, DeploymentState, DeploymentStatus, GpuState
from shared.protocol.session import ProtocolSession
from tests.agent.support.joined import PlayedBackend
from tests.support.clock import ManualClock
from tests.support.tunnels import Recorder, request_head

ENGINES = limits.ENGINES
EACH = limits.DEPLOYMENTS // limits.ENGINES


def offered(engine: int, *, status: DeploymentStatus, slots: int = 4) -> list[DeploymentState]:
    names = [f"{engine}-{number}-" + "m" * 20 for number in range(EACH)]
    return [
        DeploymentState(id=f"e{engine}/{name}", model=name, slots=slots, status=status, reason="why not")
        for name in names
    ]


class Pair:
    """A gateway's session and an agent's with the largest registry there can be, on a clock that stands until
    it is moved. The gateway's counts control frames, and raises when there are too many."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        now = self.clock()
        gateway = ProtocolSession(TunnelRole.GATEWAY, own_limits(AGENT_WINDOWS), now, GATEWAY_WINDOWS)
        agent = ProtocolSession(TunnelRole.AGENT, own_limits(GATEWAY_WINDOWS), now, AGENT_WINDOWS)
        self.gateway = SessionEndpoint(gateway, self.clock, lambda: None)
        self.agent = SessionEndpoint(agent, self.clock, lambda: None)
        self.gateway.listener = self.heard = Recorder()
        self.agent.listener = self.told = Recorder()
        self.registry = EngineRegistry(self.clock)
        self.publisher = Publisher(self.registry, lambda: (), self.clock)
        self.backends = [
            PlayedBackend(*offered(number, status=DeploymentStatus.LOADED), name=f"e{number}")
            for number in range(ENGINES)
        ]
        for backend in self.backends:
            self.registry.add(backend)

    async def turn(self) -> None:
        """A turn of the agent's loop, after which all that was sent has come."""
        await asyncio.sleep(0)
        moved = True
        while moved:
            moved = False
            for sender, receiver in ((self.gateway, self.agent), (self.agent, self.gateway)):
                sender.session.handle_deadline(self.clock())
                for message in sender.session.data_to_send(64 * 1024, self.clock()):
                    receiver.session.bytes_received(self.clock())
                    receiver.session.receive_message(message, self.clock())
                    moved = True
                sender.dispatch()
                receiver.dispatch()

    async def request(self, deployment: str) -> Stream:
        """The gateway sends a request, and the agent's end of it is given."""
        self.gateway.open(request_head(deployment=deployment), Recorder())
        await self.turn()
        return self.told.streams[-1]

    def levels(self) -> dict[str, int]:
        newest: dict[str, int] = [value for name, value in self.heard.calls if name == "slots"][-1]
        return newest

    def sent(self, name: str) -> int:
        return self.heard.names().count(name)


async def flap(pair: Pair, seconds: int) -> None:
    """Every model of every engine changes each second, each engine in a turn of its own."""
    statuses = itertools.cycle((DeploymentStatus.FAILED, DeploymentStatus.LOADED))
    for _ in range(seconds):
        status = next(statuses)
        for number, backend in enumerate(pair.backends):
            backend.offer(*offered(number, status=status))
            pair.clock.advance(TICK_S / ENGINES)
            await pair.turn()
        pair.publisher.tick()
        await pair.turn()


async def test_an_agent_whose_models_all_fail_and_come_each_second_keeps_its_session() -> None:
    pair = Pair()
    pair.publisher.attach(pair.agent, "s")
    await pair.turn()
    await flap(pair, 6)
    assert pair.sent("slots") > 12, "it is told several times a second all the same"


async def test_a_state_is_put_together_only_when_it_may_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    pair.publisher.attach(pair.agent, "s")
    await pair.turn()
    seconds, state, made = 3, pair.registry.state, 0

    def counted(gpus: tuple[GpuState, ...] = ()) -> AgentState:
        nonlocal made
        made += 1
        return state(gpus)

    monkeypatch.setattr(pair.registry, "state", counted)
    sent = pair.sent("state")
    await flap(pair, seconds)
    assert 0 < pair.sent("state") - sent <= made <= pair.sent("state") - sent + 2 * seconds, "of 192 changes"


async def test_what_is_told_in_the_end_is_what_is_so() -> None:
    pair = Pair()
    pair.publisher.attach(pair.agent, "s")
    await flap(pair, 5)
    assert set(pair.levels().values()) == {0}
    for number, backend in enumerate(pair.backends):
        backend.offer(*offered(number, status=DeploymentStatus.LOADED, slots=7))
        await pair.turn()
    for _ in range(5):
        pair.clock.advance(TICK_S)
        pair.publisher.tick()
        await pair.turn()
    state = [value for name, value in pair.heard.calls if name == "state"][-1]
    assert {deployment.slots for deployment in state.deployments} == {7}
    assert pair.levels() == {d.id: 7 for d in state.deployments}
    before = len(pair.heard.calls)
    pair.clock.advance(TICK_S)
    pair.publisher.tick()
    await pair.turn()
    assert len(pair.heard.calls) == before, "nothing has changed"


async def test_slots_that_requests_take_and_free_are_told_at_once_while_all_else_is_paced() -> None:
    pair = Pair()
    pair.publisher.attach(pair.agent, "s")
    await pair.turn()
    await flap(pair, 4)
    for _ in range(15):
        stream = await pair.request("e0/" + offered(0, status=DeploymentStatus.LOADED)[0].model)
        before = pair.levels()["e0/" + offered(0, status=DeploymentStatus.LOADED)[1].model]
        seat = pair.registry.enter("s", stream.head.deployment)
        await pair.turn()
        other = offered(0, status=DeploymentStatus.LOADED)[1].id
        assert pair.levels()[other] == before - 1
        for number, backend in enumerate(pair.backends[1:5], 1):
            backend.offer(*offered(number, status=DeploymentStatus.LOADED, slots=5 + number % 2))
            await pair.turn()
        pair.registry.leave(seat, failed=False)
        stream.reset(ErrorCode.CANCELLED)
        await pair.turn()
        assert pair.levels()[other] == before


async def test_a_gateway_would_end_the_session_of_an_agent_that_did_not_wait() -> None:
    """What the other tests rest on: the limiter is there, and reached by a frame for each change."""
    pair = Pair()
    levels = dict(pair.registry.levels("s"))

    async def tell_all() -> None:
        for number in range(ENGINES * 10):
            levels["e0/" + offered(0, status=DeploymentStatus.LOADED)[0].model] = number
            pair.agent.send_slots(levels)
            pair.clock.advance(TICK_S / ENGINES)
            await pair.turn()

    with pytest.raises(ControlFrameFlood):
        await tell_all()
