"""What an engine says it serves: reading ``/v1/models``. Pure.

Beside OpenAI's members these are understood, where an engine writes them: ``max_model_len`` (vLLM, SGLang),
``meta.n_ctx_train`` and ``meta.n_ctx`` (llama.cpp), ``max_context_length`` and ``loaded_context_length``
(LM Studio), ``context_length``; and, from the built-in engine, ``routes`` (a list), ``slots``, ``version``,
``status`` (loaded, loading, failed) and ``reason``.
"""

import re
from dataclasses import dataclass
from typing import Any

from shared import limits
from shared.messages import DeploymentStatus

MODELS = 200
"""Most models of one engine that are offered; the state of more would not fit into a frame."""

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")
_STATUSES = {str(status): status for status in DeploymentStatus}
_CONTEXT_MEMBERS = ("max_model_len", "loaded_context_length", "context_length", "max_context_length")
_CONTEXT_META = ("n_ctx", "n_ctx_train")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model of an engine. None or empty: the engine does not say."""

    id: str
    owner: str = ""
    context_tokens: int | None = None
    routes: tuple[str, ...] = ()
    slots: int | None = None
    version: str = ""
    status: DeploymentStatus = DeploymentStatus.LOADED
    reason: str = ""


def read_models(document: Any) -> tuple[ModelInfo, ...] | None:
    """The models in a parsed ``/v1/models``, each once, in order; None when it is no such document."""
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return None
    models: dict[str, ModelInfo] = {}
    for entry in entries:
        identity = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(identity, str) and is_nameable(identity):
            models.setdefault(identity, _read_model(identity, entry))
    return tuple(models.values())[:MODELS]


def is_nameable(model: str) -> bool:
    """Whether the protocol can carry the name: not empty, not too long, no blanks."""
    return 0 < len(model) <= limits.MODEL_NAME_CHARS // 2 and not _FORBIDDEN.search(model)


def _read_model(identity: str, entry: dict[str, Any]) -> ModelInfo:
    routes = entry.get("routes")
    return ModelInfo(
        id=identity,
        owner=_text(entry, "owned_by"),
        context_tokens=_context(entry),
        routes=tuple(r for r in routes if isinstance(r, str))[:16] if isinstance(routes, list) else (),
        slots=_count(entry, "slots"),
        version=_text(entry, "version"),
        status=_STATUSES.get(_text(entry, "status"), DeploymentStatus.LOADED),
        reason=_text(entry, "reason"),
    )


def _context(entry: dict[str, Any]) -> int | None:
    for name in _CONTEXT_MEMBERS:
        if (value := _count(entry, name)) is not None:
            return value
    meta = entry.get("meta")
    values = (_count(meta, name) for name in _CONTEXT_META) if isinstance(meta, dict) else ()
    return next((value for value in values if value is not None), None)


def _text(entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    return value[: limits.MODEL_NAME_CHARS] if isinstance(value, str) else ""


def _count(entry: dict[str, Any], name: str) -> int | None:
    value = entry.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
        return value
    return None
