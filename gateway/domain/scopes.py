"""What a client may ask for and what people and services may do: scopes and roles. Pure data.

A scope that is ``None`` limits nothing; an empty one allows nothing. Where a client's requests may *run* is
another matter: :mod:`gateway.domain.residency`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase, translate
from typing import Any

_PATTERN = re.compile(r"[*?\[]")

NAMED_CHARS = 200
"""How many characters of what is allowed a refusal names."""


class AdminRole(StrEnum):
    """What its holder may do on the admin API. Each may do what those before it may."""

    VIEWER = "viewer"
    """Look."""
    OPERATOR = "operator"
    """Drain agents."""
    ADMIN = "admin"
    """Make and revoke keys, revoke agents."""

    def covers(self, other: "AdminRole") -> bool:
        """Whether it may do all that ``other`` may."""
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(AdminRole)}


def matches(name: str, pattern: str) -> bool:
    """Whether ``pattern`` (``fnmatch``, case counts) is, or matches, ``name``. It is itself first: a model
    may be called ``llama[1]``."""
    return name == pattern or fnmatchcase(name, pattern)


@dataclass(frozen=True, slots=True)
class NamePatterns:
    """Names of models, as shell patterns (``fnmatch``, case counts). Costs the same however many there are
    for those written out, one match of one expression for the others. A name that is written as a pattern is
    (``llama[1]``) is always one of those it matches; to name it alone write ``llama[[]1]``."""

    patterns: tuple[str, ...]
    _exact: frozenset[str] = field(init=False, repr=False, compare=False)
    _others: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        others = [pattern for pattern in self.patterns if _PATTERN.search(pattern)]
        object.__setattr__(self, "_exact", frozenset(self.patterns))
        compiled = re.compile("|".join(map(translate, others))) if others else None
        object.__setattr__(self, "_others", compiled)

    def __contains__(self, name: str) -> bool:
        return name in self._exact or (self._others is not None and self._others.match(name) is not None)

    def __str__(self) -> str:
        return _joined(self.patterns)


@dataclass(frozen=True, slots=True)
class Scopes:
    """Limits of what may be asked for. Equal ones are equal."""

    models: NamePatterns | None = None
    """Patterns for the name that the client asks for; an alias is matched by its own name."""
    routes: frozenset[str] | None = None
    tiers: frozenset[str] | None = None

    def to_dict(self) -> dict[str, list[str]]:
        """What :func:`scopes_of` reads."""
        found: dict[str, list[str]] = {}
        if self.models is not None:
            found["models"] = list(self.models.patterns)
        if self.routes is not None:
            found["routes"] = sorted(self.routes)
        if self.tiers is not None:
            found["tiers"] = sorted(self.tiers)
        return found

    def shows(self, model: str) -> bool:
        """Whether a list of models may name ``model``."""
        return self.models is None or model in self.models


def scopes_of(values: Mapping[str, Any]) -> Scopes | None:
    """The scopes in what :meth:`Scopes.to_dict` made; None when nothing is limited."""
    return limited(values.get("models"), values.get("routes"), values.get("tiers"))


def limited(
    models: Iterable[str] | None = None,
    routes: Iterable[str] | None = None,
    tiers: Iterable[str] | None = None,
) -> Scopes | None:
    """Scopes with these limits; None when there are none."""
    if models is None and routes is None and tiers is None:
        return None
    return Scopes(
        None if models is None else NamePatterns(tuple(models)),
        None if routes is None else frozenset(routes),
        None if tiers is None else frozenset(tiers),
    )


def listed(names: Iterable[str]) -> str:
    """Names in a sentence, in order, cut where there are many."""
    return _joined(sorted(names))


def _joined(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= NAMED_CHARS else text[:NAMED_CHARS] + "…"
