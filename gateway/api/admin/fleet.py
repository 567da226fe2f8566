"""``/admin``: agents, models and the queue."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.api.admin.resources.agents import agent_facts
from gateway.api.admin.resources.resource import Json, facts_of
from gateway.api.admin.routes import AdminCall, AdminMethod, client_message
from gateway.domain.errors import RecordNotFound
from gateway.domain.scopes import AdminRole
from gateway.domain.slices import in_slices
from gateway.fleet.availability import ModelRecord
from gateway.fleet.registry import Registry
from gateway.fleet.session import AgentInfo
from gateway.storage import AgentStore
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import DeploymentState


@dataclass(frozen=True)
class FleetAdmin:
    """Reads the registry on the event loop and the store in a thread."""

    fleet: Registry
    agents: AgentStore
    depths: Callable[[], Mapping[str, int]]
    """How many requests wait, by model."""
    clock: Callable[[], float]
    """Gives seconds of the event loop's clock."""
    note: Callable[..., None]
    """``note(kind, who, agent=…)`` hears of acts that the store does not
    (:meth:`gateway.observability.audit.AuditWriter.note`)."""

    def methods(self) -> list[AdminMethod]:
        """What may be asked of the fleet."""
        viewer, operator, drain = AdminRole.VIEWER, AdminRole.OPERATOR, "/admin/agents/{agent}/drain"
        return [
            AdminMethod("GET", "/admin/agents", viewer, self.list_agents),
            AdminMethod("POST", drain, operator, self.drain_agent),
            AdminMethod("DELETE", drain, operator, self.undrain_agent),
            AdminMethod("GET", "/admin/models", viewer, self.list_models),
            AdminMethod("GET", "/admin/queue", viewer, self.list_queue),
        ]

    async def list_agents(self, call: AdminCall) -> Json:
        """Agents that are enrolled, connected or not, by name."""
        found = await asyncio.to_thread(self._enrolled)
        async for info in in_slices(self.fleet.each_agent()):
            found[info.name] = found.get(info.name, {"name": info.name}) | self._connected(info)
        return {"agents": [facts for _, facts in sorted(found.items())]}

    async def drain_agent(self, call: AdminCall) -> Json:
        """Give an agent no new work, also when it comes back. What runs there ends in its own time."""
        return self._held(call, True)

    async def undrain_agent(self, call: AdminCall) -> Json:
        """Give an agent work again."""
        return self._held(call, False)

    async def list_models(self, call: AdminCall) -> Json:
        """Every model that was ever served, with its deployments."""
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

    async def list_queue(self, call: AdminCall) -> Json:
        """How many requests wait, in all and by model."""
        depths = self.depths()
        return {"waiting": sum(depths.values()), "models": dict(sorted(depths.items()))}

    def _held(self, call: AdminCall, held: bool) -> Json:
        name = call.names["agent"]
        if not self.fleet.hold(name, held):
            raise RecordNotFound(client_message(f"No agent {name!r} is connected here"))
        self.note("agent.drain" if held else "agent.undrain", f"key:{call.principal.key_id}", agent=name)
        streams = next((info.streams for info in self.fleet.agents() if info.name == name), 0)
        return {"agent": name, "draining": held, "streams": streams}

    def _enrolled(self) -> dict[str, Json]:
        """The stored facts of agents that were not revoked, by name. Waits for the disk."""
        return {
            each.name: agent_facts(each) | {"connected": False, "may_serve": list(each.models)}
            for each in self.agents.list()
            if each.revoked_s is None
        }

    def _connected(self, info: AgentInfo) -> Json:
        return facts_of(info, ("status", "draining", "rtt_s", "streams", "reason")) | {
            "connected": True,
            "labels": dict(info.labels),
            "connected_for_s": round(self.clock() - info.connected_s, 3),
            "engines": [_engine(each, info.deployments) for each in info.engines],
            "deployments": [facts_of(each, _REPORTED) for each in info.deployments],
            "gpus": list(info.gpus),
        }


_REPORTED = ("model", "version", "status", "slots", "running", "waiting", "kv_use", "reason")
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
        "deployments": [facts_of(each, names) | {"healthy": each.healthy} for each in serving],
    }
