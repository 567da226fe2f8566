"""Whether a request at an engine's own path manages the engine, and who may. Pure.

The tables of all kinds hold for every engine: one that is taken for vLLM may be a program in front of
several, and no kind has a path for its users that is another's for managing. By its kind go the rules of the
settings.

Paths are compared as the most generous reader would read them: percent-decoded as often as anybody might,
without regard to case, parameters behind a semicolon, doubled and trailing slashes.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from urllib.parse import unquote

from gateway.domain.engine_paths.tables import EVERYWHERE, OTHERS, TABLES
from gateway.domain.errors import Forbidden
from gateway.domain.request import Request
from gateway.domain.scopes import AdminRole
from gateway.domain.surface import ENGINE, ENGINE_METHODS, READINGS

KINDS = frozenset(TABLES) | {"generic"}
"""Kinds of engine that settings may name; ``*`` is all of them."""

ALL = "*"

SEGMENTS = 32
"""A path with more is taken for one that manages: no engine has such."""

_RULE = re.compile(r"(?:(?P<methods>[A-Z]+(?:,[A-Z]+)*) )?(?P<path>/[^\s?#%]*)")
_OVERRIDES = frozenset(("x-http-method-override", "x-http-method", "x-method-override"))
"""Headers with which some frameworks override a request's method."""


class BadRule(ValueError):
    """Settings hold a rule that is none."""


_Compiled = Mapping[str, re.Pattern[str]]
"""Rules as one expression for each method."""


@lru_cache(maxsize=2 * len(KINDS))
def _compiled(rules: tuple[str, ...], *, anchored: bool = False) -> _Compiled:
    """``anchored``: a rule is for the whole path, not for its end. Most kinds have the same rules."""
    by_method: dict[str, list[str]] = defaultdict(list)
    for rule in rules:
        methods, expression = _expression(rule)
        for method in methods:
            by_method[method].append(expression)
    begins = r"\A" if anchored else ""
    return {method: re.compile(f"{begins}(?:{'|'.join(each)})\\Z") for method, each in by_method.items()}


def _fit(compiled: _Compiled, method: str, path: str) -> bool:
    """Whether one of the rules is for ``method`` at ``path``, which is canonical."""
    pattern = compiled.get(method)
    return pattern is not None and pattern.search(path) is not None


class EnginePaths:
    """What the settings say of engines' own paths. The defaults are the tables and the role operator."""

    def __init__(
        self,
        role: AdminRole | None = AdminRole.OPERATOR,
        manage: Mapping[str, Iterable[str]] | None = None,
        allow: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        """``role`` is what managing takes (None: nothing). ``manage`` are further rules and ``allow`` paths
        for every key, both by kind of engine or for ``*``. Raises :class:`BadRule`."""
        self.role = role
        more, free = dict(manage or {}), dict(allow or {})
        for kind in (*more, *free):
            if kind != ALL and kind not in KINDS:
                known_kinds = ", ".join(sorted(KINDS))
                raise BadRule(f"{kind!r} is no kind of engine: they are {known_kinds}, and '*' for all")
        self._managing: dict[str, _Compiled] = {}
        self._allowed: dict[str, _Compiled] = {}
        known = [*EVERYWHERE, *(rule for table in TABLES.values() for rule in table), *OTHERS]
        for kind in KINDS:
            self._managing[kind] = _compiled((*known, *more.get(ALL, ()), *more.get(kind, ())))
            self._allowed[kind] = _compiled((*free.get(ALL, ()), *free.get(kind, ())), anchored=True)

    def manages(self, kind: str, method: str, path: str, *, overridden: bool = False) -> bool:
        """Whether a request manages an engine of ``kind``. ``path`` is the engine's, with its query;
        ``overridden``: the engine may take it for one of any other method."""
        place, _, query = path.partition("?")
        canonical = canonical_path(place)
        if canonical is None:
            return True
        kind = kind if kind in KINDS else "generic"
        answering = "GET" if method == "HEAD" else method  # the same code answers both
        methods = ENGINE_METHODS if overridden or "_method" in query else (answering,)
        if not any(_fit(self._managing[kind], each, canonical) for each in methods):
            return False
        return not all(_fit(self._allowed[kind], each, canonical) for each in methods)

    def bars(self, request: Request, kind: str) -> bool:
        """Whether ``request`` may not go to an engine of ``kind``, because it manages that and its key may
        not."""
        if request.route != ENGINE.route or self.role is None:
            return False
        has = request.principal.role
        if has is not None and has.covers(self.role):
            return False
        overridden = any(name in _OVERRIDES for name, _ in request.headers)
        return self.manages(kind, request.method, request.path, overridden=overridden)

    def check(self, request: Request, kinds: Collection[str]) -> None:
        """Raises Forbidden, ``role_required``, for what manages an engine of one of ``kinds``, of which there
        may be none, asked by a key without the role."""
        if self.role is None or not any(self.bars(request, kind) for kind in kinds or ("generic",)):
            return
        has = request.principal.role
        its_role = "has none" if has is None else f"has the role {has.value!r}"
        raise Forbidden(
            f"{request.method} {request.path.partition('?')[0][:200]} manages the engine. That takes the "
            f"role {self.role.value!r}, and this key {its_role} (trunkline key set NAME --role "
            f"{self.role.value}, or the roles in a token).",
            code="role_required",
        )


def canonical_path(place: str) -> str | None:
    """``place`` as the most generous reader reads it; None for one with more segments than any."""
    for _ in range(READINGS):
        decoded = unquote(place, errors="replace")
        if decoded == place:
            break
        place = decoded
    place = unicodedata.normalize("NFKC", place).casefold()
    if place.count("/") + place.count("\\") > SEGMENTS:
        return None
    found: list[str] = []
    for segment in place.replace("\\", "/").split("/"):
        name = segment.partition(";")[0].strip()
        if name == "..":
            found = found[:-1]
        elif name not in ("", "."):
            found.append(name)
    return "/" + "/".join(found)


def _expression(rule: str) -> tuple[tuple[str, ...], str]:
    """The methods a rule is about, and an expression for canonical paths. Raises :class:`BadRule`."""
    found = _RULE.fullmatch(rule)
    if found is None:
        raise BadRule(f"{rule!r} is no rule: write a path, as in '/sleep', 'POST /props' or '/admin/**'")
    named = found["methods"]
    methods = ENGINE_METHODS if named is None else tuple(named.split(","))
    for method in methods:
        if method not in ENGINE_METHODS:
            raise BadRule(f"{rule!r}: {method} is none of {', '.join(ENGINE_METHODS)}")
    path = found["path"].casefold()
    below = path.endswith("/**")
    segments = [segment for segment in path.removesuffix("/**").split("/") if segment]
    if not segments or any("**" in segment for segment in segments):
        raise BadRule(f"{rule!r}: '**' stands alone at the end, behind at least one name")
    written = "".join("/" + "[^/]*".join(map(re.escape, segment.split("*"))) for segment in segments)
    return methods, written + ("(?:/.*)?" if below else "")
