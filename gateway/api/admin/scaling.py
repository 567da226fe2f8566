"""``/admin/scaling``: how many replicas of each model are wanted (docs/scaling.md).

The page of one model has numbers at its top, for KEDA's scaler ``metrics-api``.
"""

from dataclasses import dataclass
from types import MappingProxyType

from gateway.api.admin.resources.resource import Json
from gateway.api.admin.routes import AdminCall, AdminMethod, read_query
from gateway.domain.errors import BadRequest, RecordNotFound
from gateway.domain.scopes import AdminRole
from gateway.fleet.model_index import ModelIndex
from gateway.scaling.autoscaler import Autoscaler

_QUERY = MappingProxyType({"class": {"type": "string"}})
_SUMS = ("wanted", "needed", "ready", "starting")


@dataclass(frozen=True)
class ScalingAdmin:
    """The pages. Belongs to the event loop's thread."""

    scaler: Autoscaler
    index: ModelIndex

    def methods(self) -> list[AdminMethod]:
        """What may be asked."""
        viewer, one = AdminRole.VIEWER, "/admin/scaling/{model:path}"
        return [
            AdminMethod("GET", "/admin/scaling", viewer, self.list_scaling),
            AdminMethod("GET", one, viewer, self.show_scaling, query=_QUERY),
        ]

    async def list_scaling(self, call: AdminCall) -> Json:
        """Every model that is served or asked for, by class of device."""
        found = sorted(self.scaler.verdicts.items())
        return {"models": {model: verdict.as_json() for model, verdict in found}}

    async def show_scaling(self, call: AdminCall) -> Json:
        """One model, of one class of device or of all. What was served once and is not now has numbers,
        too."""
        model, query = call.names["model"], read_query(call.exchange)
        device = query.pop("class", None)
        if query:
            name = next(iter(query))[:100]
            raise BadRequest(f"There is no field {name!r} here.", param=name, code="invalid_value")
        verdict = self.scaler.verdicts.get(model)
        if verdict is None and model not in self.index.models:
            raise RecordNotFound(f"No agent ever served {model!r} here.")
        classes = {} if verdict is None else verdict.classes
        chosen = [each for name, each in classes.items() if device in (None, name)]
        found: Json = {"model": model, "class": device}
        found |= {name: sum(getattr(each, name) for each in chosen) for name in _SUMS}
        found["queued_gpu_s"] = round(sum(each.queued_gpu_s for each in chosen), 3)
        found["active"] = bool(found["wanted"] or found["ready"])
        return found
