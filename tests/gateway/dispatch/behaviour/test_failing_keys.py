"""A client whose requests engines answer with errors takes no engine from the others."""

import pytest
from structlog.testing import capture_logs

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.domain.request import Principal, Request, Tier
from gateway.scheduling.health.failing_keys import SERVED_S
from shared.protocol.messages import ResponseHead, Trailers
from tests.gateway.fleet.fleet import Client, Fleet, deployment

GOOD, BAD = Principal("k1", "good", "t"), Principal("k2", "bad", "t")


class House:
    """Agents whose engines answer every request of BAD with 500, or those that the test says."""

    def __init__(self, agents: str = "abc") -> None:
        self.fleet = Fleet(settings=DispatchSettings(slow_start_s=0))
        self.agents = [self.fleet.connect(name, deployment(slots=8)) for name in agents]
        self.broken: set[str] = set()
        self.choosy = True

    def ask(self, who: Principal, times: int = 1) -> list[Client]:
        """So many requests, one after the other, each answered."""
        return [self._answered(self.fleet.submit(self._request(who))) for _ in range(times)]

    def ask_at_once(self, who: Principal, times: int) -> list[Client]:
        clients = [self.fleet.submit(self._request(who)) for _ in range(times)]
        return [self._answered(client) for client in clients]

    def served(self, times: int = 12) -> None:
        """GOOD is served everywhere."""
        assert all(client.response.status == 200 for client in self.ask_at_once(GOOD, times))

    @property
    def open(self) -> set[str]:
        """Agents whose deployment gets nothing."""
        deployments = self.fleet.registry.index.serving("m")
        return {each.agent for each in deployments if each.health is not None and not each.health.healthy}

    def _request(self, who: Principal) -> Request:
        return self.fleet.request(principal=who, streaming=False, tier=Tier.STANDARD)

    def _answered(self, client: Client) -> Client:
        for _ in range(20):
            self._answer()
            if client.settled:
                return client
            self.fleet.advance(0.1)
        raise AssertionError("nobody answers")

    def _answer(self) -> None:
        ids = {exchange.request.id: exchange.request for exchange in self.fleet.dispatcher.exchanges.values()}
        for agent in self.agents:
            for stream in agent.streams:
                if stream.ended or stream.closed:
                    continue
                request = ids.get(stream.head.request_id)
                fails = agent.name in self.broken
                if self.choosy and request is not None and request.principal is BAD:
                    fails = True
                stream.ended = True
                stream.stream.send_head(ResponseHead(500 if fails else 200, ()))
                stream.stream.send_data(b"{}")
                stream.stream.end(Trailers())
        self.fleet.settle()


@pytest.mark.parametrize("agents", ["a", "ab", "abc"])
def test_errors_of_one_key_open_no_circuit_while_others_are_served(agents: str) -> None:
    house = House(agents)
    for _ in range(10):
        house.served()
        assert all(client.response.status == 500 for client in house.ask(BAD, 8))
        assert house.open == set()


def test_many_at_once_open_one_for_a_moment_at_most_and_then_no_more() -> None:
    house = House()
    house.served()
    house.ask_at_once(BAD, 24)
    house.fleet.advance(1.0)
    house.served()
    for _ in range(5):
        house.ask_at_once(BAD, 24)
        assert house.open == set()
        house.served()


def test_the_log_names_the_key_once() -> None:
    house = House("ab")
    with capture_logs() as lines:
        for _ in range(3):
            house.served()
            house.ask(BAD, 3)
    told = [line for line in lines if line["event"] == "requests_make_engines_fail"]
    assert [(line["key"], line["model"]) for line in told] == [("bad", "m")]


def test_where_nobody_else_is_served_errors_count() -> None:
    house = House()
    house.served()
    house.fleet.advance(SERVED_S)
    house.ask(BAD, 5)
    assert house.open


def test_an_engine_that_fails_for_everybody_is_found_at_once() -> None:
    house = House()
    house.served()
    house.broken = {"a"}
    while len(house.agents[0].streams) < 20:
        before = len(house.agents[0].streams)
        house.ask(GOOD, 3)
        if len(house.agents[0].streams) == before:
            break
    assert house.open == {"a"}
    assert len(house.agents[0].streams) <= 4 + 5


def test_engines_that_failed_on_what_another_serves_are_at_fault_after_all() -> None:
    house = House()
    house.choosy = False
    house.served()
    house.broken = {"a", "b"}
    assert all(client.response.status == 200 for client in house.ask(BAD, 8))
    assert house.open == {"a", "b"}
