"""What the gateway itself answers of KServe's Open Inference Protocol: server, health, readiness, index.

Inference and the metadata of models are an engine's (:mod:`gateway.domain.inference_paths`).
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from gateway.api.exchange.exchange import HttpExchange
from gateway.api.openai.handlers import JSON, KeyedPage, ReadPage, Respond
from gateway.api.openai.json_bodies import read_json
from gateway.domain.errors import ModelNotFound
from gateway.domain.request import Principal
from gateway.domain.slices import in_slices
from gateway.domain.surface import check_model
from gateway.fleet.registry import ServedModel
from gateway.pipeline.aliases import AliasCatalog
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.runtime.lifecycle import Lifecycle, LifecyclePhase
from shared.protocol.routes import ANY_ROUTE, Route

EXTENSIONS = ("binary_tensor_data", "model_repository", "model_configuration", "statistics")

_UNLOADED = "unloaded; it is loaded when it is asked for"
_OF_TENSORS = frozenset((Route.INFER.value,))


class IndexBody(BaseModel):
    """The body of ``POST /v2/repository/index``."""

    model_config = ConfigDict(extra="ignore")

    ready: bool = False
    """List only models that are ready."""


def kserve_pages(
    keys: KeyAuthenticator, catalog: AliasCatalog, lifecycle: Lifecycle, version: str
) -> Mapping[str, ReadPage | KeyedPage]:
    """The pages by their paths, in the order in which they are to be tried."""
    ready = ReadPage("models", _model_readiness(keys, catalog))
    index = KeyedPage("models", keys, nullcontext, {"POST": _index(catalog)})
    return {
        "/v2": ReadPage("version", _server(keys, version)),
        "/v2/health/live": ReadPage("health", _live),
        "/v2/health/ready": ReadPage("health", _ready(lifecycle)),
        "/v2/repository/index": index,
        "/v2/models/{model:path}/versions/{version}/ready": ready,
        "/v2/models/{model:path}/ready": ready,
    }


def _server(keys: KeyAuthenticator, version: str) -> Respond:
    """``GET /v2``: the server's metadata, for holders of a key."""
    body = orjson.dumps({"name": "trunkline", "version": version, "extensions": EXTENSIONS})

    async def respond(exchange: HttpExchange, names: Mapping[str, str]) -> None:
        await exchange.identify(keys)
        await exchange.reply.whole(200, JSON, body)

    return respond


async def _live(exchange: HttpExchange, names: Mapping[str, str]) -> None:
    """``GET /v2/health/live``: the process answers. Open to everybody."""
    await exchange.reply.whole(200, JSON, b'{"live":true}')


def _ready(lifecycle: Lifecycle) -> Respond:
    """``GET /v2/health/ready``: requests are taken. Open to everybody."""

    async def respond(exchange: HttpExchange, names: Mapping[str, str]) -> None:
        ready = lifecycle.phase is LifecyclePhase.SERVING
        await exchange.reply.whole(200 if ready else 503, JSON, orjson.dumps({"ready": ready}))

    return respond


def _model_readiness(keys: KeyAuthenticator, catalog: AliasCatalog) -> Respond:
    """``GET /v2/models/{model}/ready``: whether it can be used at once. The gateway does not know which
    versions its engine has; one that is named changes nothing."""

    async def respond(exchange: HttpExchange, names: Mapping[str, str]) -> None:
        principal = await exchange.identify(keys)
        name = check_model(names["model"])
        info = catalog.model(name)
        if info is None or not _shows(principal, name):
            message = (
                f"The model '{name}' is not served here. POST /v2/repository/index lists those that are."
            )
            raise ModelNotFound(message, param="model")
        body = orjson.dumps({"name": name, "ready": info.ready})
        await exchange.reply.whole(200 if info.ready else 400, JSON, body)

    return respond


def _index(catalog: AliasCatalog) -> Any:
    async def respond(exchange: HttpExchange, principal: Principal, identity: str) -> None:
        """``POST /v2/repository/index``: the models that take tensors and can be used now, or are loaded when
        they are asked for, within the key's scopes."""
        asked = await read_json(exchange, IndexBody)
        found = [
            _entry(info)
            async for info in in_slices(catalog.each_model())
            if (info.ready or (info.loadable and not asked.ready))
            and _takes_tensors(info)
            and _shows(principal, info.id)
        ]
        await exchange.reply.whole(200, JSON, orjson.dumps(found))

    return respond


def _entry(info: ServedModel) -> Mapping[str, str]:
    state, reason = ("READY", "") if info.ready else ("UNAVAILABLE", _UNLOADED)
    return {"name": info.id, "version": "1", "state": state, "reason": reason}


def _takes_tensors(info: ServedModel) -> bool:
    """What has no route but that of its engine's own paths takes requests of every one."""
    return not _OF_TENSORS.isdisjoint(info.routes) or info.routes == (ANY_ROUTE,)


def _shows(principal: Principal, model: str) -> bool:
    return principal.scopes is None or principal.scopes.shows(model)
