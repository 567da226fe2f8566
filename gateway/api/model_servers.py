"""What the gateway itself answers of TorchServe's API, and where TensorFlow Serving's meets OpenAI's.

Predictions, and what is told of a model's versions, are an engine's (:mod:`gateway.domain.serving_paths`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.api.exchange.exchange import HttpExchange
from gateway.api.openai.handlers import JSON, Respond, openai_models
from gateway.domain.surface import MODELS
from gateway.pipeline.aliases import AliasCatalog
from gateway.runtime.lifecycle import Lifecycle, LifecyclePhase
from shared.protocol.routes import Route

SERVED_PATTERNS = (
    *(f"{MODELS}/{{model:path}}:{verb}" for verb in ("predict", "classify", "regress", "explain")),
    f"{MODELS}/{{model:path}}/metadata",
    f"{MODELS}/{{model:path}}/versions/{{version}}",
    f"{MODELS}/{{model:path}}/labels/{{label}}",
)
"""What TensorFlow Serving's paths look like, the bare one of a model excepted."""


def ping(lifecycle: Lifecycle) -> Respond:
    """``GET /ping``: requests are taken. Open to everybody, and in TorchServe's words."""

    async def respond(exchange: HttpExchange, names: Mapping[str, str]) -> None:
        serving = lifecycle.phase is LifecyclePhase.SERVING
        body = orjson.dumps({"status": "Healthy" if serving else "Unhealthy"})
        await exchange.reply.whole(200 if serving else 503, JSON, body)

    return respond


def listed_models(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``GET /models`` for OpenAI's clients, who read ``data``, and for TorchServe's, who read ``models``.
    What file a model is from is not known here: its name stands for it."""
    predicting = [each["id"] for each in found if Route.PREDICTIONS in each["routes"]]
    return openai_models(found) | {"models": [{"modelName": name, "modelUrl": name} for name in predicting]}


def names_of_model(catalog: AliasCatalog) -> Callable[[str], Mapping[str, str] | None]:
    """Which of the paths below ``/v1/models/`` is OpenAI's path of a model, although it ends as one of
    TensorFlow Serving's: that of a model which is called so."""

    def names(path: str) -> Mapping[str, str] | None:
        name = path.removeprefix(f"{MODELS}/")
        return None if catalog.model(name) is None else {"id": name}

    return names
