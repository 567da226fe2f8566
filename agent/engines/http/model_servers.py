"""The backends for TensorFlow Serving and for TorchServe.

Neither lists its models where clients ask, so the settings name them. TensorFlow Serving is asked for the
state of each; TorchServe says of all its models together whether they work. Requests and answers are passed
on as they are, as with every engine.
"""

from typing import Any
from urllib.parse import quote

from agent.engines.backend import LOADING
from agent.engines.http.kind import TENSORFLOW, TORCHSERVE
from agent.engines.http.models import EngineModel
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.http.probe import Lister, NoModelList
from shared.protocol.messages import DeploymentStatus

PING_PATH = "/ping"

_STARTING = frozenset(("START", "LOADING"))


class TensorFlowServingBackend(OpenAIHTTPBackend):
    """Implements :class:`agent.engines.backend.Backend`."""

    listed_kind = TENSORFLOW

    def _lister(self) -> Lister:
        return self._list

    async def _list(self) -> tuple[EngineModel, ...]:
        """Raises :class:`BackendError` for a server that answers nothing."""
        return tuple([await self._one(name) for name in self._settings.models])

    async def _one(self, name: str) -> EngineModel:
        answer = await self._ask(f"/v1/models/{quote(name, safe='')}")
        if answer.status == 503:
            raise NoModelList(answer, f"/v1/models/{name}")
        return read_status(name, answer.status, answer.json())


def read_status(name: str, status: int, said: Any) -> EngineModel:
    """What the answer ``said`` to a question for the state of the model ``name`` means."""
    versions = said.get("model_version_status") if isinstance(said, dict) else None
    rows = [row for row in versions if isinstance(row, dict)] if isinstance(versions, list) else []
    states = [row.get("state") for row in rows]
    if status == 200 and "AVAILABLE" in states:
        return EngineModel(name)
    if not _STARTING.isdisjoint(state for state in states if isinstance(state, str)):
        return EngineModel(name, status=DeploymentStatus.LOADING, reason=LOADING)
    told = [row["status"].get("error_message") for row in rows if isinstance(row.get("status"), dict)]
    told.append(said.get("error") if isinstance(said, dict) else None)
    why = next((each for each in told if isinstance(each, str) and each), f"status {status}")
    reason = f"the server does not serve it ({why})"
    return EngineModel(name, status=DeploymentStatus.FAILED, reason=reason)


class TorchServeBackend(OpenAIHTTPBackend):
    """Implements :class:`agent.engines.backend.Backend`."""

    listed_kind = TORCHSERVE

    def _lister(self) -> Lister:
        return self._list

    async def _list(self) -> tuple[EngineModel, ...]:
        """Raises :class:`BackendError` for a server that is not well."""
        answer = await self._ask(PING_PATH)
        said = answer.json()
        if answer.status != 200 or not isinstance(said, dict) or said.get("status") == "Unhealthy":
            raise NoModelList(answer, PING_PATH)
        return tuple(EngineModel(name) for name in self._settings.models)
