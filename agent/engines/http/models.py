"""What an engine says it serves: reading ``/v1/models``. Pure.

Beside OpenAI's members these are understood, where an engine writes them: ``max_model_len`` (vLLM, SGLang),
``meta.n_ctx_train`` and ``meta.n_ctx`` (llama.cpp), ``max_context_length`` and ``loaded_context_length``
(LM Studio), ``context_length``; and, from the built-in engine, ``routes`` (a list), ``slots``, ``version``,
``status`` (loaded, loading, failed) and ``reason``.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from shared.protocol import limits
from shared.protocol.messages import DeploymentStatus

MODELS = 200
"""Most models of one engine that are offered; the state of more would not fit into a frame."""

LISTED = 2048
"""Of a list of models so many are looked at."""

TOLD = 20
TOLD_CHARS = 80
"""Of names that are left out, and of one of them, that a log shows."""

_STATUSES = {str(status): status for status in DeploymentStatus}
_CONTEXT_MEMBERS = ("max_model_len", "loaded_context_length", "context_length", "max_context_length")
_CONTEXT_META = ("n_ctx", "n_ctx_train")


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One model of an engine. None or empty: the engine does not say."""

    id: str
    owner: str = ""
    context_tokens: int | None = None
    routes: tuple[str, ...] = ()
    slots: int | None = None
    version: str = ""
    status: DeploymentStatus = DeploymentStatus.LOADED
    reason: str = ""


def read_models(document: Any) -> tuple[EngineModel, ...] | None:
    """The models in a parsed ``/v1/models``, each once, in order; None when it is no such document."""
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return None
    models: dict[str, EngineModel] = {}
    for entry in entries[:LISTED]:
        identity = entry.get("id") if isinstance(entry, dict) else None
        if isinstance(identity, str) and identity not in models and is_nameable(identity):
            models[identity] = _read_model(identity, entry)
            if len(models) == MODELS:
                break
    return tuple(models.values())


def left_out(document: Any) -> tuple[tuple[str, str], ...]:
    """Of the models in a parsed ``/v1/models`` those that :func:`read_models` leaves out: how they are
    called, as far as that can be shown in a line, and why they cannot be offered. At most :data:`TOLD` of
    them."""
    entries = document.get("data") if isinstance(document, dict) else None
    faults: list[tuple[str, str]] = []
    good: dict[Any, None] = {}
    for entry in entries[:LISTED] if isinstance(entries, list) else ():
        name = entry.get("id") if isinstance(entry, dict) else None
        if why := why_not_nameable(name):
            faults.append((_shown(name), why))
        else:
            good[name] = None
        if len(faults) >= TOLD:
            return tuple(faults[:TOLD])
    beyond = list(good)[MODELS : MODELS + TOLD]
    faults += [(_shown(name), f"an agent offers {MODELS} models of one engine") for name in beyond]
    return tuple(faults[:TOLD])


def _shown(name: Any) -> str:
    text = ascii(name[:TOLD_CHARS]) if isinstance(name, str) else "(no name)"
    return (
        text
        if len(text) <= TOLD_CHARS and len(name or "") <= TOLD_CHARS
        else f"{text[:TOLD_CHARS]}… ({len(name)} characters)"
    )


def is_nameable(model: str) -> bool:
    """Whether clients can ask for a model of this name, and the protocol can carry it."""
    return not why_not_nameable(model)


def why_not_nameable(name: Any) -> str:
    """What is wrong with a model's name; empty if nothing is."""
    if not isinstance(name, str) or not name:
        return "it has no name"
    if len(name) > limits.MODEL_NAME_CHARS:
        return f"its name has {len(name)} characters, and {limits.MODEL_NAME_CHARS} are allowed"
    if " " in name or not name.isprintable():
        return "its name holds blanks, or characters that cannot be printed"
    return ""


def deployment_id(engine: str, model: str) -> str:
    """What the deployment of ``model`` at ``engine`` is called in the session: ``engine/model``, cut where
    that is too long, and then told from others by a digest."""
    whole = f"{engine}/{model}"
    if len(whole) <= limits.MODEL_NAME_CHARS:
        return whole
    digest = sha256(model.encode()).hexdigest()[:24]
    return f"{whole[: limits.MODEL_NAME_CHARS - len(digest) - 1]}~{digest}"


def _read_model(identity: str, entry: dict[str, Any]) -> EngineModel:
    routes = entry.get("routes")
    return EngineModel(
        id=identity,
        owner=_text(entry, "owned_by"),
        context_tokens=_context(entry),
        routes=tuple(r for r in routes if isinstance(r, str))[:32] if isinstance(routes, list) else (),
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
