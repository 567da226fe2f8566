"""What an engine says it serves: reading ``/v1/models``. Pure.

Beside OpenAI's members these are understood, where an engine writes them: ``max_model_len`` (vLLM, SGLang),
``meta.n_ctx_train`` and ``meta.n_ctx`` (llama.cpp), ``max_context_length`` and ``loaded_context_length``
(LM Studio), ``context_length``, ``capabilities``; and, from the built-in engine, ``routes`` (a list),
``slots``, ``version``, ``status`` (loaded, loading, failed) and ``reason``.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from agent.engines.http.capabilities import capabilities_in
from agent.engines.model_names import is_nameable, why_not_nameable
from shared.protocol import limits
from shared.protocol.messages import DeploymentStatus
from shared.protocol.work import WorkScale

MODELS = 200
"""Most models of one engine that are offered; the state of more would not fit into a frame."""

LISTED = 2048
"""How many models of a list are looked at."""

LOGGED = 20
LOGGED_CHARS = 80
"""How many left-out names a log line shows, and how many characters of each."""

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
    capabilities: tuple[str, ...] = ()
    work: WorkScale | None = None
    """How much work its requests are."""


def read_models(document: Any, wanted: Collection[str] = ()) -> tuple[EngineModel, ...] | None:
    """The models in a parsed ``/v1/models``, each once, in order; None when it is no such document.
    ``wanted``: only these; empty: all."""
    if (entries := _entries(document, wanted)) is None:
        return None
    named: dict[str, dict[str, Any]] = {}
    for name, entry in entries:
        if len(named) < MODELS and is_nameable(name):
            named.setdefault(name, entry)
    said = capabilities_in(document)
    return tuple(_read_model(name, entry, said.get(name, ())) for name, entry in named.items())


def left_out(document: Any, wanted: Collection[str] = ()) -> tuple[tuple[str, str], ...]:
    """The models in a parsed ``/v1/models`` that :func:`read_models` leaves out although they are wanted, at
    most :data:`LOGGED` of them: their names, shortened for the log, and why they cannot be offered."""
    names = [name for name, _ in _entries(document, wanted) or ()]
    faults = [(name, why) for name in names if (why := why_not_nameable(name))]
    good = dict.fromkeys(name for name in names if is_nameable(name))
    beyond = f"an agent offers {MODELS} models of one engine"
    faults += [(name, beyond) for name in list(good)[MODELS : MODELS + LOGGED]]
    return tuple((_shown(name), why) for name, why in faults[:LOGGED])


def _entries(document: Any, wanted: Collection[str]) -> list[tuple[Any, Any]] | None:
    """The first entries of a list of models, each with its name as it stands there; of those ``wanted``."""
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return None
    named = [(entry.get("id") if isinstance(entry, dict) else None, entry) for entry in entries[:LISTED]]
    return [(name, entry) for name, entry in named if not wanted or name in wanted]


def _shown(name: Any) -> str:
    if not isinstance(name, str):
        return "(no name)"
    text = ascii(name[:LOGGED_CHARS])
    if max(len(text), len(name)) <= LOGGED_CHARS:
        return text
    return f"{text[:LOGGED_CHARS]}… ({len(name)} characters)"


def _read_model(identity: str, entry: dict[str, Any], capabilities: tuple[str, ...]) -> EngineModel:
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
        capabilities=capabilities,
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
