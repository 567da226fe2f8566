"""What may be reused, for how long and within which bounds. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.domain.errors import BadRequest

HEADER = b"x-trunkline-cache"


@dataclass(frozen=True, slots=True)
class Rule:
    """Of one model. ``cache_s``: so long an answer is kept, 0 for not at all; ``coalesce``: identical
    requests that come while one runs wait for its answer."""

    cache_s: float = 0.0
    coalesce: bool = True


@dataclass(frozen=True, slots=True)
class ReuseSettings:
    """Bounds, and what is allowed by default."""

    models: Mapping[str, Rule] = field(default_factory=dict)
    by_header: bool = False
    """Clients may ask for it where no rule is."""
    header_cache_s: float = 3600.0
    """How long answers are kept then."""
    cache_bytes: int = 64 * 1024 * 1024
    """Of all answers together, those included that are being collected."""
    entry_bytes: int = 1024 * 1024
    """Longest answer that is kept or shared."""
    entries: int = 100_000
    followers: int = 256
    """Requests that wait for one."""


class Wish(StrEnum):
    """What a client asks for in ``x-trunkline-cache``."""

    DEFAULT = ""
    ALLOW = "allow"
    """Reuse, where the operator lets clients say so."""
    REFRESH = "refresh"
    """A fresh answer, which is kept."""
    NO = "no"
    """A fresh answer, which is not."""


def read_wish(value: bytes | None) -> Wish:
    """Raises BadRequest."""
    if value is None:
        return Wish.DEFAULT
    try:
        wish = Wish(value.decode("latin-1").strip().lower())
    except ValueError:
        wish = Wish.DEFAULT
    if wish is Wish.DEFAULT:
        raise BadRequest(
            "The header x-trunkline-cache must be one of allow, refresh, no.",
            param="x-trunkline-cache",
            code="invalid_cache",
        )
    return wish
