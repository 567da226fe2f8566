"""``/admin/models/{model}/load`` and ``/evict``: what operators want loaded and unloaded, besides what
requests ask for (docs/admin.md).

Both answer at once. What becomes of it is in the states of the deployments, which the live events tell.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.api.admin.resources.resource import Json
from gateway.api.admin.routes import AdminCall, AdminMethod, read_body
from gateway.cluster.placement_demands import EvictionWish
from gateway.dispatch.placement import Placer
from gateway.domain.errors import BadRequest, NoDeployment, NotOnDemand, RecordNotFound
from gateway.domain.scopes import AdminRole
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.scheduling.base import DeploymentConstraints
from gateway.storage.acts import AdminActionStore
from shared.protocol.messages import DeploymentStatus

HOLD_S = 300.0
"""So long it is tried to have a model loaded; what is loaded by then stays."""

_ID_BYTES = 8
_NAME_CHARS = 256
"""Of an agent's name or a version; no name is as long."""


@dataclass(frozen=True)
class ModelsAdmin:
    """The pages. Belongs to the event loop's thread."""

    index: ModelIndex
    loads: Placer | None
    """None: nothing is loaded on demand here."""
    acts: AdminActionStore
    waiting: Callable[[str], int]
    """How many requests wait for a model."""
    clock: Callable[[], float]

    def methods(self) -> list[AdminMethod]:
        """What may be asked."""
        path, operator = "/admin/models/{model:path}", AdminRole.OPERATOR
        return [
            AdminMethod("POST", f"{path}/load", operator, self.load_model),
            AdminMethod("POST", f"{path}/evict", operator, self.evict_model),
        ]

    async def load_model(self, call: AdminCall) -> Json:
        """Have a model loaded at one more place: at ``agent``, or where it fits best. What is idle is
        unloaded for it, as for requests that wait."""
        loads, model = self._on_demand(), call.names["model"]
        agent, version = await _texts(call, "agent", "version")
        places = [
            each
            for each in self._managed(model, agent)
            if each.listed and each.routes and (version is None or each.version == version)
        ]
        if not places:
            raise RecordNotFound(f"{_who(agent)} would load {model!r}{_of_version(version)}.")
        fit = DeploymentConstraints(min(places[0].routes), version=version, agent=agent)
        loaded, now = loads.copies(model, fit), self.clock()
        answer = {"model": model, "agent": agent, "version": version, "places": len(places), "loaded": loaded}
        if loaded >= len(places):
            return answer | {"begun": False, "expected_s": None}
        _check_loadable(
            loads.why_not_loadable(model, now)
        )  # before it is noted: what is refused leaves no note
        await asyncio.to_thread(self.acts.note, "model.load", model=model, agent=agent, version=version)
        _check_loadable(loads.wish(model, fit, now, loaded, HOLD_S))
        expected_s = loads.expected_s(model, now)
        return answer | {"begun": True, "expected_s": None if expected_s is None else round(expected_s, 1)}

    async def evict_model(self, call: AdminCall) -> Json:
        """Have a model unloaded at ``agent``, or everywhere. It gets nothing new there, and goes when what
        runs is over; requests that come after that have it loaded again."""
        loads, model = self._on_demand(), call.names["model"]
        (agent,) = await _texts(call, "agent")
        there = [each for each in self._managed(model, agent) if each.status is DeploymentStatus.LOADED]
        if not there:
            raise RecordNotFound(f"{_who(agent)} has {model!r} loaded.")
        behind = sorted({each.agent for each in there if each.via})
        there = [each for each in there if not each.via]
        if not there:
            raise NotOnDemand(f"{', '.join(behind)} is a gateway, which decides itself what is unloaded.")
        await asyncio.to_thread(self.acts.note, "model.evict", model=model, agent=agent)
        everywhere = agent is None and not behind
        keys = frozenset() if everywhere else frozenset(each.key for each in there)
        running = [
            {"agent": each.agent, "deployment": each.key, "running": max(each.in_flight, each.running)}
            for each in there
        ]
        loads.evict(EvictionWish(secrets.token_hex(_ID_BYTES), model, keys))
        return {"model": model, "deployments": running, "waiting": self.waiting(model), "kept": behind}

    def _on_demand(self) -> Placer:
        """Raises NotOnDemand."""
        if self.loads is None:
            raise NotOnDemand("This gateway has no models loaded and unloaded: placement.enabled is off.")
        return self.loads

    def _managed(self, model: str, agent: str | None) -> Sequence[Deployment]:
        """The deployments that their agents load and unload. Raises RecordNotFound, NotOnDemand."""
        record = self.index.models.get(model)
        known = [] if record is None else [*record.serving.values(), *record.managed.values()]
        if record is None or not known:
            raise RecordNotFound(f"No agent that is connected has {model!r}.")
        if not record.managed:
            raise NotOnDemand(
                f"The engines of {model!r} were started by somebody else: an agent loads and unloads only "
                "models of engines that it starts itself."
            )
        return [each for each in record.managed.values() if agent in (None, each.agent)]


def _check_loadable(why_not: str | None) -> None:
    """Raises NoDeployment."""
    if why_not is not None:
        raise NoDeployment(why_not, param="model", code="model_not_loadable")


def _who(agent: str | None) -> str:
    return "No agent that is connected" if agent is None else f"No engine of {agent!r}"


def _of_version(version: str | None) -> str:
    return "" if version is None else f" in the version {version!r}"


async def _texts(call: AdminCall, *names: str) -> list[str | None]:
    """These members of the body, each a text, or null where it is not given. Raises BadRequest for others."""
    body = await read_body(call.exchange)
    for name, value in body.items():
        if name not in names:
            raise BadRequest(f"There is no member {name[:100]!r} here.", param=name[:100])
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= _NAME_CHARS):
            words = f"'{name}' is a text of 1 to {_NAME_CHARS} characters."
            raise BadRequest(words, param=name, code="invalid_value")
    return [body.get(name) for name in names]
