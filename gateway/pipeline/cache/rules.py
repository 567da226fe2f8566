"""Which answers may be cached, for how long and within which bounds; which requests have one answer. Pure.

An engine answers a deterministic request alike however often it is asked. Embeddings and rankings are
deterministic; what is written is only at ``temperature`` 0 given explicitly, with one choice, and with
nothing that depends on more than the request: no stored conversation, no tools the engine runs itself, no
file or page it fetches from elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gateway.domain.errors import BadRequest
from shared.protocol.routes import Route

HEADER = b"x-trunkline-cache"


@dataclass(frozen=True, slots=True)
class CacheRule:
    """The rule for one model. ``cache_s`` is how long an answer is kept, 0 for not at all. With ``coalesce``,
    identical requests that come while one runs wait for its answer."""

    cache_s: float = 0.0
    coalesce: bool = True


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Bounds, and the rules by model."""

    models: Mapping[str, CacheRule] = field(default_factory=dict)
    by_header: bool = False
    """Clients may ask for it where no rule is."""
    header_cache_s: float = 3600.0
    """How long answers are kept then."""
    cache_bytes: int = 64 * 1024 * 1024
    """Memory for all answers together, including those that are being collected."""
    entry_bytes: int = 1024 * 1024
    """Longest answer that is kept or shared."""
    entries: int = 100_000
    followers: int = 256
    """Requests that wait for one."""


class CacheDirective(StrEnum):
    """What a client asks for in ``x-trunkline-cache``."""

    DEFAULT = ""
    ALLOW = "allow"
    """Reuse, where the operator lets clients say so."""
    REFRESH = "refresh"
    """A fresh answer, which is kept."""
    NO = "no"
    """A fresh answer, which is not."""


def read_directive(value: bytes | None) -> CacheDirective:
    """Raises BadRequest."""
    if value is None:
        return CacheDirective.DEFAULT
    text = value.decode("latin-1").strip().lower()
    if text not in (CacheDirective.ALLOW, CacheDirective.REFRESH, CacheDirective.NO):
        raise BadRequest(
            "The header x-trunkline-cache must be one of allow, refresh, no.",
            param="x-trunkline-cache",
            code="invalid_cache",
        )
    return CacheDirective(text)


_COMPUTED = frozenset((Route.EMBEDDINGS, Route.RERANK))
_WRITTEN = frozenset((Route.CHAT, Route.COMPLETIONS, Route.RESPONSES))

_ELSEWHERE = ("previous_response_id", "conversation", "background", "web_search_options", "prompt_id")
"""Members with which the answer depends on more than the request itself."""

_TOOLS = frozenset({"function", "custom"})
"""Tools that the client runs."""


def deterministic(route: str, members: Mapping[str, Any], body: bytes) -> bool:
    """Whether the answer to a request of ``route`` depends on nothing but these ``members`` of ``body``."""
    if route not in _COMPUTED and not (route in _WRITTEN and _greedy(members) and _alone(route, members)):
        return False
    return not _fetches(members, body)


def _greedy(members: Mapping[str, Any]) -> bool:
    temperature = members.get("temperature")
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or temperature != 0:
        return False
    return all(members.get(name) in (None, 1) for name in ("n", "best_of"))


def _alone(route: str, members: Mapping[str, Any]) -> bool:
    if any(members.get(name) for name in _ELSEWHERE):
        return False
    stored = members.get("store", route == "responses")  # which stores unless it is told not to
    if stored not in (None, False) or isinstance(members.get("prompt"), dict):
        return False
    tools = members.get("tools") or ()
    return isinstance(tools, list | tuple) and all(
        isinstance(tool, dict) and tool.get("type", "function") in _TOOLS for tool in tools
    )


def _fetches(members: Mapping[str, Any], body: bytes) -> bool:
    """Whether something is named that lies elsewhere, and may be another thing tomorrow."""
    if b"url" not in body and b"file_id" not in body and b"\\u" not in body:
        return False
    todo: list[Any] = [members]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if any(map(_elsewhere, value.items())):
                return True
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(each for each in value if isinstance(each, dict | list))
    return False


def _elsewhere(member: tuple[str, Any]) -> bool:
    name, value = member
    if not isinstance(value, str):
        return False
    return name == "file_id" or (name.endswith("url") and not value.startswith("data:"))
