"""The backend for servers of KServe's Open Inference Protocol (v2): Triton, MLServer and others.

Models come from the repository's index. A server without one is asked for the readiness of each model that
the settings name. Requests and answers are passed on as they are, as with every engine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import orjson
import structlog

from agent.engines.backend import LOADING, UNLOADING, BackendError, BackendRefused
from agent.engines.http.engine_client import SmallResponse
from agent.engines.http.kind import KSERVE
from agent.engines.http.models import LISTED, MODELS, EngineModel
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.http.probe import Lister, NoModelList
from agent.engines.model_names import is_nameable
from agent.engines.settings import EngineSettings
from shared.protocol import limits
from shared.protocol.messages import DeploymentState, DeploymentStatus

log = structlog.get_logger("agent.engine")

INDEX_PATH = "/v2/repository/index"
NAME_THEM = "name them in the agent's file, with models"
LOAD_S = 1800.0
"""How long a server may take to load or unload a model."""

Question = Callable[[str, str, bytes], Awaitable[SmallResponse]]
"""Path, method, body."""

_GOING = {"LOADING": LOADING, "UNLOADING": UNLOADING}


@dataclass(frozen=True, slots=True)
class RepositoryIndex:
    """Lists the models of the server that ``ask`` reaches. ``wanted``: only these, or those there are where
    there is no index. ``loads``: those that are not loaded are listed, too."""

    ask: Question
    wanted: tuple[str, ...] = ()
    loads: bool = False

    async def __call__(self) -> tuple[EngineModel, ...]:
        """Raises :class:`BackendError` for a server that cannot tell."""
        answer = await self.ask(INDEX_PATH, "POST", b"{}")
        said = answer.json() if answer.status == 200 else None
        listed = read_index(said, self.wanted, loads=self.loads)
        if listed is not None:
            return listed
        if not self.wanted or answer.status >= 500:
            why = f"the server lists no models ({INDEX_PATH} answers {answer.status}): {NAME_THEM}"
            raise NoModelList(answer, why=why)
        return tuple([await self._one(name) for name in self.wanted])

    async def _one(self, name: str) -> EngineModel:
        answer = await self.ask(f"/v2/models/{quote(name, safe='')}/ready", "GET", b"")
        if answer.status == 200:
            return EngineModel(name)
        why = f"the server says that it is not ready (status {answer.status})"
        return EngineModel(name, status=DeploymentStatus.FAILED, reason=why)


def read_index(document: Any, wanted: Collection[str] = (), *, loads: bool) -> tuple[EngineModel, ...] | None:
    """The models of an index, each once, whatever its versions; None for what is no index. ``wanted``: only
    these; empty: all. With ``loads`` those that are not loaded are among them."""
    if not isinstance(document, list):
        return None
    found: dict[str, EngineModel] = {}
    for entry in document[:LISTED]:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not is_nameable(name) or (wanted and name not in wanted):
            continue
        model = _read_entry(name, entry)
        if model.status is DeploymentStatus.LOADABLE and not loads:
            continue
        before = found.get(name)
        if before is None or _ORDER.index(model.status) < _ORDER.index(before.status):
            found[name] = model
    return tuple(found.values())[:MODELS]


_ORDER = (
    DeploymentStatus.LOADED,
    DeploymentStatus.LOADING,
    DeploymentStatus.FAILED,
    DeploymentStatus.LOADABLE,
)
"""Of the versions of a model the first of these counts."""


def _read_entry(name: str, entry: dict[str, Any]) -> EngineModel:
    """A version that is not loaded has no state, or is unavailable: ``unloaded``, or for another reason,
    which is why it could not be loaded (Triton). MLServer gives no reason."""
    state, reason = entry.get("state"), entry.get("reason")
    if state == "READY":
        return EngineModel(name)
    if isinstance(state, str) and state in _GOING:
        return EngineModel(name, status=DeploymentStatus.LOADING, reason=_GOING[state])
    if isinstance(reason, str) and reason not in ("", "unloaded"):
        return EngineModel(name, status=DeploymentStatus.FAILED, reason=reason)
    return EngineModel(name, status=DeploymentStatus.LOADABLE)


class KServeBackend(OpenAIHTTPBackend):
    """Implements :class:`agent.engines.backend.Backend` and, where ``settings.loads``,
    :class:`agent.engines.backend.ModelLoader`."""

    listed_kind = KSERVE

    def __init__(self, settings: EngineSettings) -> None:
        self._loads = settings.loads
        self._wanted = settings.models
        self._moves: dict[str, tuple[DeploymentStatus, str]] = {}
        """Model → what it is at by command, or why that failed."""
        self._moving: set[asyncio.Task[None]] = set()
        super().__init__(settings)

    def _lister(self) -> Lister:
        return RepositoryIndex(self._ask, self._wanted, self._loads)

    async def close(self) -> None:
        for task in self._moving:
            task.cancel()
        await asyncio.gather(*self._moving, return_exceptions=True)
        await super().close()

    def deployments(self) -> tuple[DeploymentState, ...]:
        return tuple(self._as_moving(state) for state in super().deployments())

    def load_model(self, deployment_id: str) -> None:
        """See :class:`agent.engines.backend.ModelLoader`."""
        self._begin(deployment_id, "load", LOADING)

    def unload_model(self, deployment_id: str) -> None:
        """See :class:`agent.engines.backend.ModelLoader`."""
        self._begin(deployment_id, "unload", UNLOADING)

    def _as_moving(self, state: DeploymentState) -> DeploymentState:
        move = self._moves.get(state.model)
        if move is None or (move[0] is DeploymentStatus.FAILED and state.status is DeploymentStatus.LOADED):
            return state
        return replace(state, status=move[0], reason=move[1])

    def _begin(self, deployment_id: str, verb: str, reason: str) -> None:
        model = next((each.model for each in self.deployments() if each.id == deployment_id), None)
        if model is None or not self._loads:
            raise BackendRefused("the deployment is not one that is loaded and unloaded")
        going = self._moves.get(model)
        if going is not None and going[0] is DeploymentStatus.LOADING:
            if going[1] == reason:
                return
            raise BackendRefused(going[1])
        self._moves[model] = (DeploymentStatus.LOADING, reason)
        task = asyncio.create_task(self._move(model, verb), name=f"{verb} {deployment_id}")
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)
        self._on_change()

    async def _move(self, model: str, verb: str) -> None:
        path = f"/v2/repository/models/{quote(model, safe='')}/{verb}"
        log.info("model command", verb=verb, engine=self.name, model=model)
        failure = ""
        try:
            answer = await self._client.ask(path, "POST", b"{}", LOAD_S)
            if answer.status >= 400:
                failure = _error_in(answer)
        except BackendError as error:
            failure = error.reason
        if failure:
            log.warning("model command failed", verb=verb, engine=self.name, model=model, reason=failure)
        await self.refresh()
        if failure and verb == "load":
            self._moves[model] = (DeploymentStatus.FAILED, failure[: limits.REASON_CHARS])
        else:
            del self._moves[model]
        self._on_change()


def _error_in(answer: SmallResponse) -> str:
    """What the server says of why it did not."""
    try:
        said = orjson.loads(answer.body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        said = None
    return said if isinstance(said, str) and said else f"the server answers {answer.status}"
