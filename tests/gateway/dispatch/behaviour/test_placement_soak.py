"""Placement under whatever happens: agents that load, fail, refuse, go silent, go away and come back."""

import random

import pytest

from gateway.dispatch.dispatcher import QueueSettings
from gateway.dispatch.placement import PlacementSettings
from gateway.domain.errors import NoDeployment, QueueFull, QueueTimeout
from shared.protocol.messages import DeploymentState
from tests.gateway.fleet.fleet import Client, Fleet
from tests.gateway.fleet.tunnels import resume, suspend
from tests.gateway.scheduling.placement.loadable import (
    FAILED,
    LOADABLE,
    LOADED,
    LOADING,
    LoadingAgent,
    finish,
    loadable,
)

MODELS = ("x", "y", "z")


class House:
    """Two agents, three models, and chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fleet = Fleet(
            queue=QueueSettings(max_wait_s=20.0),
            placement=PlacementSettings(hold_s=120.0, min_residence_s=3.0, load_timeout_s=20.0),
            policy=self.random.choice(["cost", "least-outstanding"]),
        )
        self.agents = [self.agent(name) for name in ("a", "b")]
        self.clients: list[Client] = []
        self.away: list[LoadingAgent] = []

    def agent(self, name: str) -> LoadingAgent:
        states = [loadable(model, self.random.choice([4, 8, None]), load_s=4.0, slots=2) for model in MODELS]
        memory = self.random.choice([8, 10, None])
        return LoadingAgent(self.fleet, *states, name=name, memory=memory)

    def ask(self) -> None:
        self.clients.append(self.fleet.submit(self.fleet.request(self.random.choice(MODELS))))

    def step(self, *, kind: bool = False) -> None:
        """Something happens at one of the agents. ``kind``: nothing bad."""
        chance, agent = self.random.random(), self.random.choice(self.agents)
        if agent.agent.lost or agent.agent.endpoint.session.suspended:
            if kind or chance < 0.3:
                self.come_back(agent)
        elif chance < 0.7 or kind:
            self.go_on(agent)
        elif chance < 0.75:
            agent.refuses = self.random.choice([None, None, "not now"])
        elif chance < 0.8:
            agent.mute = self.random.random() < 0.3
        elif chance < 0.85:
            suspend(self.fleet, agent.agent)
        elif chance < 0.88:
            self.fleet.cut(agent.agent)
        elif chance < 0.95:
            self.fail(agent)

    def come_back(self, agent: LoadingAgent) -> None:
        if agent.agent.lost:
            self.agents[self.agents.index(agent)] = self.agent(agent.agent.name)
        else:
            resume(self.fleet, agent.agent)

    def go_on(self, agent: LoadingAgent) -> None:
        """What is under way gets done, or a request is answered."""
        for state in list(agent.states.values()):
            if state.status is LOADING:
                agent.become(state.model, LOADED)
            elif state.reason and state.status is LOADED:
                agent.become(state.model, LOADABLE, reason="")
        if agent.agent.open_streams:
            stream = agent.agent.open_streams[0]
            if stream.reset_code is not None:
                stream.confirm()
                self.fleet.settle()
            else:
                finish(agent)

    def fail(self, agent: LoadingAgent) -> None:
        busy = {stream.head.deployment for stream in agent.agent.open_streams}
        for state in list(agent.states.values()):
            if state.id not in busy and state.status in (LOADING, LOADED):
                agent.become(state.model, self.random.choice([FAILED, LOADABLE]), reason="")
                return

    def check(self) -> None:
        for agent in self.agents:
            there: list[DeploymentState] = [
                each for each in agent.states.values() if each.status in (LOADED, LOADING)
            ]
            taken = sum(each.memory_bytes or 0 for each in there)
            assert agent.memory is None or taken <= agent.memory

    def until(self, client: Client) -> None:
        """Nothing bad happens any more, and ``client`` gets what it gets."""
        for _ in range(300):
            if client.settled:
                return
            self.step(kind=True)
            self.fleet.advance(1.0)
        raise AssertionError(f"{client.request.id} waits for ever")


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_everybody_gets_an_answer_or_an_honest_refusal(seed: int) -> None:
    house = House(seed)
    for _ in range(150):
        if house.random.random() < 0.3:
            house.ask()
        house.step()
        house.check()
        house.fleet.advance(house.random.choice([0.0, 0.5, 2.0]))
    for agent in house.agents:
        agent.mute, agent.refuses = False, None
    for client in house.clients:
        house.until(client)
    refusals = [client.outcomes[0] for client in house.clients if isinstance(client.outcomes[0], Exception)]
    assert all(isinstance(each, QueueFull | QueueTimeout | NoDeployment) for each in refusals)
    assert len(refusals) < 0.8 * len(house.clients)
    house.fleet.advance(300.0)
    for model in MODELS:
        client = house.fleet.submit(house.fleet.request(model))
        house.until(client)
        assert not isinstance(client.outcomes[0], Exception), f"{model} can be had again"
