"""The backends for TensorFlow Serving and for TorchServe.

Neither lists its models where clients ask. TensorFlow Serving's are named by the settings, and it is asked
for the state of each. TorchServe's are named by the settings, or listed by its management API, which is at
another port, with what its workers do; where clients ask it says of all models together whether they work.
Requests and answers are passed on as they are, as with every engine.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from agent.engines.backend import LOADING, BackendUnreachable
from agent.engines.http.engine_client import EngineClient, SmallResponse
from agent.engines.http.kind import TENSORFLOW, TORCHSERVE
from agent.engines.http.models import LISTED, MODELS, EngineModel
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.http.probe import Lister, NoModelList
from agent.engines.model_names import is_nameable
from agent.engines.settings import EngineSettings
from shared.protocol.messages import DeploymentStatus

PING_PATH = "/ping"
MANAGED_PATH = "/models"
PAGE = 100
"""Models in one page of TorchServe's list."""
AT_ONCE = 8
"""Models that TorchServe is asked about at one time."""

NAME_THEM = "name its models in the agent's file, with models, or say where it lists them, with management"
NO_WORKER = "no worker of the model is ready"

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

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._management: EngineClient | None = None
        if settings.management is not None:
            key = settings.management_key
            self._management = EngineClient(replace(settings, url=settings.management, api_key=key))

    def _lister(self) -> Lister:
        return self._list

    async def close(self) -> None:
        await super().close()
        if self._management is not None:
            await self._management.close()

    async def _list(self) -> tuple[EngineModel, ...]:
        """Raises :class:`BackendError` for a server that is not well, or whose models are not known."""
        answer = await self._ask(PING_PATH)
        said = answer.json()
        if answer.status != 200 or not isinstance(said, dict) or said.get("status") == "Unhealthy":
            raise NoModelList(answer, PING_PATH)
        named = self._settings.models
        if self._management is None:
            return tuple(EngineModel(name) for name in named)
        try:
            return await self._managed_models(self._management)
        except (BackendUnreachable, NoModelList):
            if not named:
                raise
            return tuple(EngineModel(name) for name in named)

    async def _managed_models(self, management: EngineClient) -> tuple[EngineModel, ...]:
        """Raises :class:`BackendError` where the management API does not tell."""
        wanted = await self._names(management)
        found: list[EngineModel] = []
        for start in range(0, len(wanted), AT_ONCE):
            some = wanted[start : start + AT_ONCE]
            found += await asyncio.gather(*(self._one(management, name) for name in some))
        return tuple(found)

    async def _names(self, management: EngineClient) -> Sequence[str]:
        """Of the models that the management API lists; of those that the settings name, if they name some.
        Raises :class:`BackendError`."""
        named, names, token, listed = self._settings.models, list[str](), "", 0
        while listed < LISTED and len(names) < MODELS:
            answer = await self._managed(management, f"{MANAGED_PATH}?limit={PAGE}{token}")
            page = read_page(answer.json()) if answer.status == 200 else None
            if page is None:
                place = f"{self._settings.management}{MANAGED_PATH}"
                raise NoModelList(answer, why=f"{place} answers {answer.status}: {NAME_THEM}")
            names += [name for name in page[0] if not named or name in named]
            listed += len(page[0])
            if not page[0] or page[1] is None:
                break
            token = f"&next_page_token={quote(page[1], safe='')}"
        return list(dict.fromkeys(names))[:MODELS]

    async def _one(self, management: EngineClient, name: str) -> EngineModel:
        answer = await self._managed(management, f"{MANAGED_PATH}/{quote(name, safe='')}")
        return read_workers(name, answer.json() if answer.status == 200 else None)

    async def _managed(self, management: EngineClient, path: str) -> SmallResponse:
        try:
            return await management.ask(path)
        except BackendUnreachable as error:
            why = f"{self._settings.management} does not answer ({error.reason}): {NAME_THEM}"
            raise BackendUnreachable(why) from None


def read_page(said: Any) -> tuple[list[str], str | None] | None:
    """The names in a page of TorchServe's list of models, and what the next page is asked for with; None for
    what is no page."""
    listed = said.get("models") if isinstance(said, dict) else None
    if not isinstance(listed, list):
        return None
    names = [row.get("modelName") for row in listed[:PAGE] if isinstance(row, dict)]
    token = said.get("nextPageToken")
    usable = [name for name in names if isinstance(name, str) and is_nameable(name)]
    return usable, str(token) if isinstance(token, str | int) and token != "" else None


def read_workers(name: str, said: Any) -> EngineModel:
    """The model ``name``, as its description in TorchServe's management API says. It is loaded once one of
    its workers is ready, and takes a batch for each of these at once."""
    rows = [row for row in said if isinstance(row, dict)] if isinstance(said, list) else []
    if not rows:
        return EngineModel(name, status=DeploymentStatus.FAILED, reason="the server does not describe it")
    row, listed = rows[0], rows[0].get("workers")
    workers = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    ready = sum(each.get("status") == "READY" for each in workers)
    if not ready:
        status = DeploymentStatus.LOADING if workers else DeploymentStatus.FAILED
        return EngineModel(name, status=status, reason=NO_WORKER)
    batch = row.get("batchSize")
    slots = ready * batch if type(batch) is int and 0 < batch <= 4096 else None
    return EngineModel(name, slots=slots)
