"""By which right models are loaded and unloaded, where a gateway has several processes (PROTOCOL §4.8)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from structlog.testing import capture_logs

from gateway.dispatch.placement import PlacementSettings
from shared.link.command_fence import CommandFence
from shared.protocol.messages import Command, CommandResult
from shared.protocol.peers import CAPABILITIES, DEMAND
from tests.gateway.fleet.fleet import Fleet
from tests.gateway.scheduling.placement.loadable import LOAD, LoadingAgent, finish, loadable


@dataclass
class PlayedOwnership:
    owns: bool = True
    epoch: int | None = 7


def told(agent: LoadingAgent) -> list[Mapping[str, Any]]:
    """The commands that the agent gets from now on, as they are on the wire."""
    found: list[Mapping[str, Any]] = []
    host = agent.agent.host
    assert host is not None

    def hear(command: Mapping[str, Any]) -> None:
        found.append(command)
        host(command)

    agent.agent.host = hear
    return found


def site(ownership: PlayedOwnership | None, *capabilities: str) -> tuple[Fleet, LoadingAgent]:
    fleet = Fleet(placement=PlacementSettings(), ownership=ownership)
    agent = LoadingAgent(fleet, loadable("m"))
    fleet.dispatcher.agreed(fleet.session(agent.agent), capabilities)
    return fleet, agent


def test_an_agent_that_agreed_to_it_is_told_the_epoch() -> None:
    fleet, agent = site(PlayedOwnership(), *CAPABILITIES)
    commands = told(agent)
    fleet.submit()
    fleet.settle()
    assert [(each["verb"], each["epoch"]) for each in commands] == [("load", 7)]


def test_older_agents_and_gateways_of_one_process_hear_and_say_nothing_of_it() -> None:
    for ownership, capabilities in ((PlayedOwnership(), (DEMAND,)), (None, CAPABILITIES)):
        fleet, agent = site(ownership, *capabilities)
        commands = told(agent)
        fleet.submit()
        fleet.settle()
        assert [set(each) for each in commands] == [{"id", "verb", "deployment"}]


class Fenced:
    """An agent whose commands pass the fence that all its sessions share. Another process has just sent one
    by a later right than ``former`` has."""

    def __init__(self, agent: LoadingAgent) -> None:
        self.agent = agent
        self.refused: list[CommandResult] = []
        self.fence = CommandFence(lambda command: CommandResult(command.id, True))
        self.carry_out = agent.agent.host
        agent.agent.host = self.hear
        assert self.fence.carry_out(Command.read({"id": 1, "verb": LOAD, "deployment": "d-m", "epoch": 8})).ok

    def hear(self, command: Mapping[str, Any]) -> None:
        result = self.fence.carry_out(Command.read(command))
        if result.ok:
            assert self.carry_out is not None
            self.carry_out(command)
        else:
            self.refused.append(result)
            self.agent.agent.endpoint.send_command(result.to_dict())


def test_an_owner_that_was_frozen_and_lost_the_right_is_refused_and_leaves_it_at_that() -> None:
    """It had decided before it was frozen, and sends when it goes on; then it sees that its lease is over."""
    ownership = PlayedOwnership(epoch=7)
    former, agent = site(ownership, *CAPABILITIES)
    fenced = Fenced(agent)

    def hear(command: Mapping[str, Any]) -> None:
        ownership.owns = False
        fenced.hear(command)

    agent.agent.host = hear
    with capture_logs() as logs:
        client = former.submit()
        former.settle()
        assert ["taken over" in result.error for result in fenced.refused] == [True]
        former.advance(120.0)
    assert len(fenced.refused) == 1, "it commands nothing more"
    (said,) = (each for each in logs if each["event"] == "model_command_outdated")
    assert (said["log_level"], said["verb"]) == ("warning", LOAD)
    assert "taken over" in said["reason"]
    failed = ("model_load_failed", "model_does_not_fit", "model_unload_failed")
    assert not [each for each in logs if each["event"] in failed], "that says nothing of the model"
    assert not client.settled, "the process that has the right loads the model"

    ownership.owns, ownership.epoch = True, 9
    agent.agent.host = fenced.hear
    former.submit()
    former.advance(1.0)
    assert agent.commands == [(LOAD, "m")], "it has the right again, by a later epoch"
    agent.loaded("m")
    finish(agent)
    assert client.response.status == 200


def test_one_that_still_believes_to_own_is_refused_rarely() -> None:
    """As when it goes on and the store does not answer it: the agent is asked less and less often."""
    former, agent = site(PlayedOwnership(epoch=7), *CAPABILITIES)
    fenced = Fenced(agent)
    former.submit()
    former.settle()
    assert len(fenced.refused) == 1
    former.advance(60.0)
    assert 2 <= len(fenced.refused) <= 5
    assert agent.commands == []
