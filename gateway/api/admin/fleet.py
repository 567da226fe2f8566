"""``/admin``: agents, models and the queue, of all processes of the gateway."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.api.admin.merging import merge_agents, merge_models, merge_queue
from gateway.api.admin.resources.agents import agent_facts
from gateway.api.admin.resources.resource import Json, facts_of
from gateway.api.admin.routes import AdminCall, AdminMethod
from gateway.domain.scopes import AdminRole
from gateway.domain.slices import in_slices
from gateway.fleet.availability import ModelRecord
from gateway.fleet.registry import Registry
from gateway.fleet.session import AgentInfo
from gateway.runtime.workers.siblings import SiblingAnswers
from gateway.storage import AgentStore
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import DeploymentState


class OtherProcesses(Protocol):
    """:class:`gateway.app.process_reads.ProcessReads`."""

    def answer(self, question: str, answerer: Callable[[Json], Awaitable[Json]]) -> None: ...
    async def ask_all(self, question: str, **facts: Any) -> SiblingAnswers: ...
    def gone(self) -> Mapping[str, str]: ...


async def _apply_nothing() -> None:
    pass


@dataclass(frozen=True)
class FleetAdmin:
    """Reads the registry on the event loop and the store in a thread."""

    fleet: Registry
    agents: AgentStore
    depths: Callable[[], Mapping[str, int]]
    """How many requests wait, by model."""
    clock: Callable[[], float]
    """Gives seconds of the event loop's clock."""
    process: Callable[[], Json] = dict
    """What is shown of this process."""
    siblings: OtherProcesses | None = None
    """The other processes of the gateway; None: there are none."""
    apply: Callable[[], Awaitable[None]] = _apply_nothing
    """Has the sessions of agents follow what the store says now."""
    wall: Callable[[], float] = time.time
    """Gives seconds since 1970."""
    move: Callable[[str], int] = lambda agent: 0
    """Has streams of this process that run at an agent go on elsewhere; how many did."""

    def __post_init__(self) -> None:
        """Answer what siblings ask."""
        if self.siblings is not None:
            self.siblings.answer("agents", lambda asked: self._agents())
            self.siblings.answer("models", lambda asked: self._models())
            self.siblings.answer("queue", lambda asked: self._queue())
            self.siblings.answer("process", lambda asked: self._process())
            self.siblings.answer("streams", self._streams)

    def methods(self) -> list[AdminMethod]:
        """What may be asked of the fleet."""
        viewer, operator, drain = AdminRole.VIEWER, AdminRole.OPERATOR, "/admin/agents/{agent}/drain"
        return [
            AdminMethod("GET", "/admin/agents", viewer, self.list_agents),
            AdminMethod("POST", drain, operator, self.drain_agent),
            AdminMethod("POST", "/admin/agents/{agent}/move", operator, self.move_streams),
            AdminMethod("DELETE", drain, operator, self.undrain_agent),
            AdminMethod("GET", "/admin/models", viewer, self.list_models),
            AdminMethod("GET", "/admin/queue", viewer, self.list_queue),
            AdminMethod("GET", "/admin/processes", viewer, self.list_processes),
        ]

    async def list_agents(self, call: AdminCall) -> Json:
        """Agents that are enrolled, connected or not, by name."""
        return await self._merged("agents", await self._agents(), merge_agents)

    async def drain_agent(self, call: AdminCall) -> Json:
        """Give an agent no new work, also when it comes back. What runs there ends in its own time."""
        return await self._held(call, True)

    async def move_streams(self, call: AdminCall) -> Json:
        """The same, and have streams go on at other agents from where they are, as far as these have slots
        free now. To be asked again until nothing runs there."""
        return await self._held(call, True, move=True)

    async def undrain_agent(self, call: AdminCall) -> Json:
        """Give an agent work again."""
        return await self._held(call, False)

    async def list_models(self, call: AdminCall) -> Json:
        """Every model that was ever served, with its deployments."""
        return await self._merged("models", await self._models(), merge_models)

    async def list_queue(self, call: AdminCall) -> Json:
        """How many requests wait, in all and by model."""
        return await self._merged("queue", await self._queue(), merge_queue)

    async def list_processes(self, call: AdminCall) -> Json:
        """The processes of the gateway, by name. Of one that does not answer only that is told."""
        shown = [await self._process() | {"up": True}]
        if self.siblings is not None:
            answers = usable_answers(await self.siblings.ask_all("process"), _named)
            shown += [each | {"up": True} for each in answers.found.values()]
            silent = {**dict.fromkeys(answers.missing, ""), **answers.reasons, **self.siblings.gone()}
            shown += [{"process": name, "up": False, "why": why} for name, why in silent.items()]
        return {"processes": sorted(shown, key=lambda each: str(each["process"]))}

    async def _merged(self, question: str, own: Json, merge: Callable[[Sequence[Json]], Json]) -> Json:
        """What all processes say, with the names of those that said nothing."""
        if self.siblings is None:
            return own
        answers = usable_answers(await self.siblings.ask_all(question), lambda answer: merge([answer]))
        return merge([own, *answers.found.values()]) | without_answers(answers)

    # --- Of this process ---

    async def _agents(self) -> Json:
        found = await asyncio.to_thread(self._enrolled)
        async for info in in_slices(self.fleet.each_agent()):
            found[info.name] = found.get(info.name, {"name": info.name}) | self._connected(info)
        return {"agents": [facts for _, facts in sorted(found.items())]}

    async def _models(self) -> Json:
        depths, records = self.depths(), self.fleet.index.models
        return {
            "models": [
                {
                    "id": info.id,
                    "ready": info.ready,
                    "routes": list(info.routes),
                    "waiting": depths.get(info.id, 0),
                    **_served(records.get(info.id)),
                }
                async for info in in_slices(self.fleet.each_model())
            ]
        }

    async def _queue(self) -> Json:
        depths = self.depths()
        return {"waiting": sum(depths.values()), "models": dict(sorted(depths.items()))}

    async def _process(self) -> Json:
        return {**self.process(), "agents": len(self.fleet.agents())}

    async def _streams(self, asked: Json) -> Json:
        """How many requests run on an agent; none where it is not connected. With ``move`` its streams go on
        elsewhere as far as there is room."""
        moved = self.move(asked["agent"]) if asked.get("move") else 0
        streams = sum(each.streams for each in self.fleet.agents() if each.name == asked["agent"])
        return {"streams": streams, "moved": moved}

    # --- Holding ---

    async def _held(self, call: AdminCall, held: bool, *, move: bool = False) -> Json:
        """Every process of the gateway learns it from the store, within a second."""
        name = call.names["agent"]
        record = await asyncio.to_thread(self.agents.hold, name, self.wall(), held=held)
        await self.apply()
        answers, asked = SiblingAnswers({}, []), {"move": "yes"} if move else {}
        if self.siblings is not None:
            answers = await self.siblings.ask_all("streams", agent=name, **asked)
            answers = usable_answers(answers, lambda answer: int(answer["streams"]))
        seen = [await self._streams({"agent": name, **asked}), *answers.found.values()]
        streams = sum(int(each["streams"]) for each in seen)
        found = {"agent": record.name, "draining": held, "streams": streams}
        if move:  # processes of earlier versions move nothing
            found["moved"] = sum(int(each.get("moved", 0)) for each in seen)
        return found | without_answers(answers)

    def _enrolled(self) -> dict[str, Json]:
        """The stored facts of agents that were not revoked, by name. Waits for the disk."""
        return {
            each.name: agent_facts(each)
            | {"connected": False, "may_serve": list(each.models), "draining": each.held_s is not None}
            for each in self.agents.list()
            if each.revoked_s is None
        }

    def _connected(self, info: AgentInfo) -> Json:
        return facts_of(info, ("status", "draining", "rtt_s", "streams", "reason", "software")) | {
            "connected": True,
            "labels": dict(info.labels),
            "connected_for_s": round(self.clock() - info.connected_s, 3),
            "engines": [_engine(each, info.deployments) for each in info.engines],
            "deployments": [facts_of(each, _REPORTED) for each in info.deployments],
            "gpus": list(info.gpus),
        }


def without_answers(answers: SiblingAnswers) -> Json:
    """Which processes an answer lacks, where it lacks any, and why."""
    return {"missing": answers.missing, "why_missing": answers.reasons} if answers.missing else {}


def _named(answer: Json) -> None:
    """Raises KeyError, TypeError and ValueError for what is not said of a process."""
    int(answer["agents"])
    if not isinstance(answer["process"], str):
        raise TypeError("a name is text")


def usable_answers(answers: SiblingAnswers, read: Callable[[Json], object]) -> SiblingAnswers:
    """Without those that ``read`` fails at: they come from another version, or from a fault there."""
    found, reasons = dict(answers.found), dict(answers.reasons)
    for name, answer in answers.found.items():
        try:
            read(answer)
        except (KeyError, TypeError, ValueError, AttributeError):
            del found[name]
            reasons[name] = "it answers with something else than was asked for"
    missing = [*answers.missing, *(name for name in answers.found if name not in found)]
    return SiblingAnswers(found, missing, reasons)


_REPORTED = (
    *("id", "model", "version", "status", "slots", "running", "waiting", "kv_use", "reason"),
    *("managed", "load_progress"),
)
"""What an agent reports of a deployment."""


def _engine(state: EngineState, deployments: Sequence[DeploymentState]) -> Json:
    """What an agent reports of an engine, and the models that it offers from there."""
    offered = [each for each in deployments if each.id.startswith(f"{state.name}/")]
    kinds = (each.kind for each in offered if each.kind)  # earlier agents say the engine's kind only there
    return facts_of(state, ("name", "status", "reason", "load_progress", "loading_s", "load_s")) | {
        "kind": state.kind or next(kinds, ""),
        "models": sorted({each.model for each in offered}),
        "loading": state.loading_words,
    }


def _served(record: ModelRecord | None) -> Json:
    """The deployments that serve a model now, and their slots."""
    serving = [] if record is None else list(record.serving.values())
    names = ("agent", "version", "status", "slots", "in_flight")
    return {
        "slots": sum(each.slots for each in serving),
        "in_flight": sum(each.in_flight for each in serving),
        "loadable": 0 if record is None else len(record.loadable),
        "deployments": [
            {"deployment": each.key, **facts_of(each, names), "healthy": each.healthy} for each in serving
        ],
    }
