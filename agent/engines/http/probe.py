"""One look at an engine: what it serves, whether it is well, how busy it is."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import quote

import orjson

from agent.engines.backend import BackendBusy, BackendError, BackendTimeout
from agent.engines.dialects.dialect import translated_needs, with_translated
from agent.engines.dialects.table import DIALECTS
from agent.engines.http.capabilities import NOTHING_SAID, ModelDescription, capabilities_in, contexts_in
from agent.engines.http.engine_client import SmallResponse
from agent.engines.http.kind import (
    GENERIC,
    EngineKind,
    WhileBusy,
    kind_of,
    kind_of_paths,
    routes_from,
    slots_from,
)
from agent.engines.http.load import Loads, slices
from agent.engines.http.models import EngineModel, left_out, read_models
from agent.engines.http.states import failed
from agent.engines.model_names import deployment_id
from agent.engines.settings import EngineSettings
from shared.protocol import limits
from shared.protocol.messages import DeploymentState, DeploymentStatus
from shared.protocol.routes import CONTINUED_ROUTES, ROUTES, Route

MODELS_PATH = "/v1/models"
HEALTH_PATH = "/health"
METRICS_PATH = "/metrics"
INFO_PATH = "/info"
OPENAPI_PATH = "/openapi.json"

LOADING = "the engine is loading its model"
NAME_MODELS = "if it has no such list, name its models in the agent's file, with models and health"
SHORTER_LIST = "name its models in the agent's file, with models and health"

PATIENCE = 2
"""An engine is gone after so many late answers in a row: a long prompt may make it late once."""

BLOCKED_PATIENCE = 6
"""The same of engines that are not known to answer while they work: they may work for somebody else."""

SHOWN = 8
"""Models that an engine is asked about in one look, where it is asked about each."""


class Ask(Protocol):
    """Sends one question. Raises :class:`BackendError`."""

    def __call__(self, path: str, method: str = "GET", body: bytes = b"") -> Awaitable[SmallResponse]: ...


Lister = Callable[[], Awaitable[tuple[EngineModel, ...]]]
"""Lists the models of an engine that has no OpenAI API. Raises :class:`BackendError` where there are none."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """An engine as last seen."""

    deployments: tuple[DeploymentState, ...] = ()
    kind: EngineKind = GENERIC
    gone: bool = True
    reason: str = "the engine has not been looked at"
    loading: bool = False
    """It does not serve yet, and reports that it is loading."""
    late: int = 0
    """Looks in a row that timed out."""
    reported_slots: int | None = None
    offers: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    """Its routes and what it lacks of them, as its OpenAPI document says; None: it has none."""
    has_health: bool = True
    was_well: bool = False
    """Its health path has answered with success before, so a failure there means that it is not well."""
    has_metrics: bool = True
    tells_load: bool = False
    """Its ``/metrics`` has told of its load."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Models that it lists and that cannot be offered: their names and the reasons."""
    unspoken: frozenset[str] = frozenset()
    """Needs of which a request showed that it does not have their paths."""
    translated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A deployment's id → its needs whose requests are translated to chat completions."""
    about: ModelDescription = NOTHING_SAID
    """What it says of its one model beside their list."""
    described: Mapping[str, ModelDescription] = field(default_factory=dict)
    """What it says of each of its models beside their list, by their names."""
    foreign: bool = False
    """Whether something that is no engine answers at its address."""

    @property
    def while_busy(self) -> WhileBusy:
        """How the engine reacts to probes while requests run. An engine of an unknown kind that reports its
        load counts as one that answers."""
        known = self.kind.while_busy
        return WhileBusy.ANSWERS if known is WhileBusy.UNKNOWN and self.tells_load else known

    def models(self) -> tuple[str, ...]:
        return tuple(d.model for d in self.deployments if d.status is DeploymentStatus.LOADED)

    def reason_of(self, deployment_id: str) -> str:
        return next((d.reason for d in self.deployments if d.id == deployment_id), "")


@dataclass(frozen=True, slots=True)
class _Health:
    status: DeploymentStatus = DeploymentStatus.LOADED
    reason: str = ""
    known: bool = True
    well: bool = False
    """It said so itself."""


class NoModelList(BackendError):
    """The engine answered, and not with a list of models; or, at ``health``, not that it is well."""

    def __init__(self, answer: SmallResponse, health: str = "", why: str = "") -> None:
        self.loading = answer.status == 503 and b"oading" in answer.body
        unwell = f"the engine is not well ({health} answers {answer.status})" if health else ""
        super().__init__(LOADING if self.loading else unwell or why or _why_no_models(answer))
        self.foreign = not health and answer.status < 500 and answer.status not in (401, 403, 408, 429)
        """The answer of something that is no engine; not that of one that has a trouble."""


class Prober:
    """Asks the engine of ``settings`` through ``ask``, which raises :class:`BackendBusy` where the engine is
    not to be asked because requests run, or did not answer because they do.

    One that ends its streams when it is asked for its models is asked for them once each time it appears;
    whether it lives shows from a path that it does not have.
    """

    def __init__(
        self, settings: EngineSettings, ask: Ask, lister: Lister | None = None, kind: EngineKind = GENERIC
    ) -> None:
        """``lister``: of an engine of ``kind`` that has no OpenAI API, and is asked nothing else."""
        self._settings = settings
        self._lister = lister
        self._kind = kind
        self._ask = ask
        self._left_out: tuple[tuple[str, str], ...] = ()

    async def look(self, before: EngineView) -> EngineView:
        """The engine as it is now, or ``before`` while requests keep it busy. Never raises BackendError."""
        patience = PATIENCE if before.while_busy is WhileBusy.ANSWERS else BLOCKED_PATIENCE
        try:
            return await self._look(before)
        except BackendBusy:
            return before
        except BackendTimeout as error:
            if not before.gone and before.late + 1 < patience:
                return replace(before, late=before.late + 1)
            return self._lost(before, error.reason)
        except NoModelList as error:
            return replace(self._lost(before, error.reason), foreign=error.foreign, loading=error.loading)
        except BackendError as error:
            return self._lost(before, error.reason)

    async def _look(self, before: EngineView) -> EngineView:
        """Raises :class:`BackendError` when the engine does not answer the first question."""
        if before.while_busy is WhileBusy.INTERRUPTS and not before.gone and before.deployments:
            await self._ask(HEALTH_PATH)
            return replace(before, late=0)
        models = await self._models()
        seen = replace(before, gone=False, reason="", late=0, foreign=False, loading=False)
        if before.gone or not before.deployments:
            seen = await self._get_acquainted(seen, models)
        seen = replace(seen, described=await self._described(seen, models))
        (health, loads) = await asyncio.gather(self._health(seen), self._loads(seen))
        deployments = tuple(self._deployment(seen, model, health, loads or Loads()) for model in models)
        return replace(
            seen,
            has_health=seen.has_health and health.known,
            was_well=seen.was_well or health.well,
            has_metrics=loads is not None,
            tells_load=bool(loads and loads.by_model) or seen.tells_load,
            left_out=self._left_out,
            translated={each.id: each.translated for each in deployments},
            deployments=deployments,
        )

    async def _models(self) -> tuple[EngineModel, ...]:
        """Raises :class:`BackendError` for an engine without a list of models, unless it needs none."""
        if self._lister is not None:
            return await self._lister()
        wanted, health = self._settings.models, self._settings.health
        if health is not None:
            answer = await self._ask(health)
            if answer.status >= 400:
                raise NoModelList(answer, health)
            return tuple(EngineModel(id=model) for model in wanted)
        answer = await self._ask(MODELS_PATH)
        listed = answer.json() if answer.status == 200 else None
        await asyncio.sleep(0)  # to parse a long list, and to read it, take a turn of the loop each
        models = read_models(listed, wanted)
        if models is None:
            raise NoModelList(answer)
        self._left_out = left_out(listed, wanted)
        return models

    async def _get_acquainted(self, view: EngineView, models: tuple[EngineModel, ...]) -> EngineView:
        """For an engine that has just appeared: its kind, and how much it takes."""
        if self._lister is not None:
            return replace(view, kind=self._kind, has_health=False, has_metrics=False, described={})
        kind = kind_of(models[0].owner if models else "", None)
        if kind is GENERIC:
            kind = kind_of("", await self._document(INFO_PATH))
        have_routes, described = any(model.routes for model in models), None
        if kind is GENERIC:
            described = await self._document(OPENAPI_PATH)
            kind = kind_of_paths(described)
        elif not have_routes:
            described = await self._document(kind.openapi_path)
        facts = None if kind.facts_path is None else await self._document(kind.facts_path)
        about = await self._about(kind, facts)
        return replace(
            view,
            kind=kind,
            reported_slots=slots_from(facts, kind),
            offers=None if have_routes else routes_from(described),
            has_health=self._settings.health is None,
            was_well=False,
            has_metrics=True,
            tells_load=False,
            about=about,
            described={},
        )

    async def _about(self, kind: EngineKind, facts: Any) -> ModelDescription:
        """What an engine with one model says of it: in its ``facts``, and where it says more."""
        if kind.read_about is None:
            return NOTHING_SAID
        more = None if kind.about_path is None else await self._document(kind.about_path)
        said = [each for each in (facts, more) if isinstance(each, dict)]
        return kind.read_about({name: value for each in said for name, value in each.items()})

    async def _described(
        self, view: EngineView, models: tuple[EngineModel, ...]
    ) -> Mapping[str, ModelDescription]:
        """What the engine says of its models where it is asked for that; of those known before it is asked
        only for what changes."""
        known, kind = view.described, view.kind
        unknown = [
            model.id for model in models if model.id not in known and model.status is DeploymentStatus.LOADED
        ]
        if unknown and kind.models_path is not None:
            said = capabilities_in(await self._document(kind.models_path))
            known = {model.id: ModelDescription(said.get(model.id, ())) for model in models}
        elif kind.show_path is not None and kind.read_shown is not None:
            found = {model.id: known[model.id] for model in models if model.id in known}
            for model in unknown[:SHOWN]:
                found[model] = kind.read_shown(await self._shown(kind.show_path, model))
            known = found
        if kind.loaded_path is not None:
            given = contexts_in(await self._document(kind.loaded_path))
            known = {
                model: replace(facts, context_tokens=given.get(model, facts.context_tokens))
                for model, facts in known.items()
            }
        return known

    async def _shown(self, path: str, model: str) -> Any:
        if "{model}" in path:
            return await self._document(path.replace("{model}", quote(model, safe="")))
        return await self._document(path, "POST", orjson.dumps({"model": model}))

    async def _ask_if_it_answers(
        self, path: str, method: str = "GET", body: bytes = b""
    ) -> SmallResponse | None:
        """None when the engine gives no answer. Raises :class:`BackendBusy`."""
        try:
            return await self._ask(path, method, body)
        except BackendBusy:
            raise
        except BackendError:
            return None

    async def _document(self, path: str, method: str = "GET", body: bytes = b"") -> Any:
        answer = await self._ask_if_it_answers(path, method, body)
        return answer.json() if answer is not None and answer.status == 200 else None

    async def _health(self, view: EngineView) -> _Health:
        if not view.has_health:
            return _Health()
        answer = await self._ask_if_it_answers(HEALTH_PATH)
        if answer is None:
            return _Health()  # the list of models has come; the next look will tell
        if answer.status == 503:
            return _not_well(answer)
        if answer.status >= 500 and view.was_well:  # vLLM's when its engine is dead: vllm-project/vllm#5060
            return _Health(
                DeploymentStatus.FAILED, f"the engine is not well ({HEALTH_PATH} answers {answer.status})"
            )
        return _Health(known=answer.status < 400, well=answer.status < 400)

    async def _loads(self, view: EngineView) -> Loads | None:
        """None when the engine says nothing of its load, and need not be asked again."""
        if not view.has_metrics:
            return None
        answer = await self._ask_if_it_answers(METRICS_PATH)
        loads = Loads()
        if answer is None:
            return loads
        if answer.status == 200:
            for piece in slices(answer.body):
                loads.feed(piece)
                await asyncio.sleep(0)
        return loads if loads.by_model else None

    def _deployment(
        self, view: EngineView, model: EngineModel, health: _Health, loads: Loads
    ) -> DeploymentState:
        load = loads.of(model.id)
        facts = ModelDescription(model.capabilities, model.context_tokens)
        facts = facts.joined(view.about).joined(view.described.get(model.id, NOTHING_SAID))
        routes, lacks = _routes(view, model)
        continues = self._settings.continues
        if continues is None:
            continues = {route: way for route, way in view.kind.continues.items() if route in routes}
        if translated := translated_needs(routes, lacks, DIALECTS):
            routes, lacks = with_translated(routes, lacks, translated)
            if (way := continues.get(Route.CHAT.value)) is not None:
                going_on = [need for need in translated if need in CONTINUED_ROUTES]
                continues = {**dict.fromkeys(going_on, way), **continues}
        well = health.status is DeploymentStatus.LOADED
        return DeploymentState(
            id=deployment_id(self._settings.name, model.id),
            model=model.id,
            version=model.version or self._settings.version,
            status=model.status if well else health.status,
            routes=routes,
            slots=self._settings.slots or model.slots or view.reported_slots or view.kind.slots,
            context_tokens=facts.context_tokens,
            running=load.running,
            waiting=load.waiting,
            kv_use=load.kv_use,
            reason=(model.reason if well else health.reason)[: limits.REASON_CHARS],
            kind=view.kind.name,
            continues=continues,
            kv_tokens=load.kv_tokens,
            lacks=lacks,
            managed=self._settings.loads,
            stateful=view.kind.stateful if self._settings.stateful is None else self._settings.stateful,
            upgrades=True,
            gpu_indices=self._settings.gpus,
            batches=load.batches,
            translated=translated,
            capabilities=facts.capabilities,
            work=model.work,
        )

    @staticmethod
    def _lost(before: EngineView, reason: str) -> EngineView:
        """What it served stays known, as failed, so that the gateway can say why a model is not there."""
        reason = reason[: limits.REASON_CHARS]
        states = failed(before.deployments, reason)
        return replace(
            before, deployments=states, gone=True, reason=reason, late=0, foreign=False, loading=False
        )


def _routes(view: EngineView, model: EngineModel) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the engine itself has for ``model``, and what it lacks of that."""
    routes, lacks = (model.routes, ()) if model.routes else view.offers or (view.kind.routes, ())
    unspoken = tuple(need for need in sorted(view.unspoken) if need not in ROUTES)
    return tuple(route for route in routes if route not in view.unspoken), (*lacks, *unspoken)


def _not_well(answer: SmallResponse) -> _Health:
    """What an answer of 503 says of an engine's health; engines of this project give status and reason."""
    said = answer.json()
    told = said if isinstance(said, dict) else {}
    loading = told["status"] == "LOADING" if "status" in told else b"oading" in answer.body
    reason = told.get("reason")
    if not isinstance(reason, str) or not reason:
        reason = LOADING if loading else "the engine says it is not well"
    return _Health(DeploymentStatus.LOADING if loading else DeploymentStatus.FAILED, reason)


def _why_no_models(answer: SmallResponse) -> str:
    if answer.status in (401, 403):
        return f"the engine wants another api_key ({MODELS_PATH} answers {answer.status})"
    if answer.status == 503:
        return f"the engine is not ready ({MODELS_PATH} answers 503)"
    if answer.status >= 500:
        return f"the engine is not well ({MODELS_PATH} answers {answer.status})"
    if answer.status == 200 and answer.is_too_much:
        return f"the engine's list of models is too long to be read ({MODELS_PATH}): {SHORTER_LIST}"
    other = answer.status if answer.status != 200 else "with something else"
    return f"the engine lists no models ({MODELS_PATH} answers {other}): {NAME_MODELS}"
