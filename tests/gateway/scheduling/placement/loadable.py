"""A fake agent that loads and unloads when told, as the real one does (PROTOCOL §4.7, §4.8)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.dispatch.dispatcher import QueueSettings
from gateway.dispatch.placement import PlacementSettings
from shared.protocol.messages import (
    AgentState,
    AgentStatus,
    Command,
    CommandResult,
    CommandVerb,
    DeploymentState,
    DeploymentStatus,
    ResponseHead,
    Trailers,
)
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet, deployment

LOAD, UNLOAD = "load", "unload"
LOADABLE, LOADING = DeploymentStatus.LOADABLE, DeploymentStatus.LOADING
LOADED, FAILED = DeploymentStatus.LOADED, DeploymentStatus.FAILED


def loadable(
    model: str,
    memory: int | None = 10,
    *,
    load_s: float | None = 20.0,
    slots: int = 1,
    status: DeploymentStatus = LOADABLE,
    **more: Any,
) -> DeploymentState:
    """A managed deployment."""
    return replace(
        deployment(model, slots, status=status), managed=True, memory_bytes=memory, load_s=load_s, **more
    )


class LoadingAgent:
    """What it is told it begins at once; the test says when it is done."""

    def __init__(
        self,
        fleet: Fleet,
        *deployments: DeploymentState,
        memory: int | None = 10,
        name: str = "a",
        models: tuple[str, ...] = ("*",),
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.fleet = fleet
        self.memory = memory
        self.states = {each.id: each for each in deployments}
        self.commands: list[tuple[str, str]] = []
        """Verb and model, oldest first."""
        self.mute = False
        """It answers no command."""
        self.refuses: str | None = None
        """With what it refuses commands."""
        self.agent: FakeAgent = fleet.connect(name, models=models, labels=labels)
        self.agent.host = self._told
        self.tell()
        fleet.settle()

    @property
    def streams(self) -> int:
        """Open ones."""
        return len(self.agent.open_streams)

    def become(self, model: str, status: DeploymentStatus, **more: Any) -> None:
        """A deployment is so from now on, and the gateway is told."""
        key = f"d-{model}"
        self.states[key] = replace(self.states[key], status=status, **more)
        self.tell()
        self.fleet.settle()

    def loaded(self, model: str, after_s: float = 0.0) -> None:
        """Its loading is done."""
        self.fleet.advance(after_s)
        assert self.states[f"d-{model}"].status is LOADING
        self.become(model, LOADED)

    def unloaded(self, model: str) -> None:
        """Its unloading is done."""
        self.become(model, LOADABLE, reason="")

    def tell(self) -> None:
        """STATE and SLOTS."""
        states = tuple(self.states.values())
        self.agent.endpoint.send_state(AgentState(AgentStatus.READY, states, model_memory_bytes=self.memory))
        levels = {each.id: each.slots if each.status is LOADED and not each.reason else 0 for each in states}
        self.agent.endpoint.send_slots(levels)

    def _told(self, command: Mapping[str, Any]) -> None:
        told = Command.read(command)
        state = self.states[told.deployment]
        self.commands.append((told.verb.value, state.model))
        if self.mute:
            return
        error = self.refuses or self._why_not(told.verb, state)
        self.agent.endpoint.send_command(CommandResult(told.id, not error, error).to_dict())
        if error:
            return
        if told.verb is CommandVerb.LOAD and state.status in (LOADABLE, FAILED):
            self.states[state.id] = replace(state, status=LOADING, reason="")
        elif told.verb is CommandVerb.UNLOAD:
            self.states[state.id] = replace(state, reason="unloading")
        self.tell()

    def _why_not(self, verb: CommandVerb, state: DeploymentState) -> str:
        if verb is CommandVerb.UNLOAD:
            runs = any(each.head.deployment == state.id for each in self.agent.open_streams)
            return "requests run there" if runs else ""
        there = [
            each for each in self.states.values() if each.status in (LOADED, LOADING) and each is not state
        ]
        taken = sum(each.memory_bytes or 0 for each in there)
        if self.memory is not None and taken + (state.memory_bytes or 0) > self.memory:
            return "it does not fit"
        return ""


def fleet_of(queue: QueueSettings | None = None, **settings: Any) -> Fleet:
    return Fleet(queue=queue, placement=PlacementSettings(**settings))


def finish(agent: LoadingAgent) -> None:
    """Answer the oldest open stream."""
    stream = agent.agent.open_streams[0].stream
    stream.send_head(ResponseHead(200, ()))
    stream.end(Trailers())
    agent.fleet.settle()


def sample(fleet: Fleet, name: str, **labels: str) -> float | None:
    return fleet.metrics.registry.get_sample_value(name, labels)


def note(client: Client) -> str | None:
    """What it would be told now."""
    assert client.request.load_note is not None
    return client.request.load_note()
