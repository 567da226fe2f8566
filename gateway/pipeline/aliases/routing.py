"""A request's way from the name it asks for to the model that answers: targets, versions, shadows, fallbacks.

A request keeps the target it was given until its answer is over. It goes to another one of its alias only
while the first has no deployment at all, and to a fallback only when its client allows that and nothing of an
answer has been said.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from gateway.domain.aliases import Alias, AliasMirror, AliasTarget
from gateway.domain.errors import (
    NO_DEPLOYMENT_RETRY_S,
    BadRequest,
    EngineBusy,
    NoDeployment,
    PathTooLong,
    QueueFull,
    QueueTimeout,
    RequestError,
)
from gateway.domain.request import Request
from gateway.fleet.availability import Availability
from gateway.fleet.model_index import ModelIndex
from gateway.pipeline.aliases.cache import AliasCache
from gateway.pipeline.aliases.figures import AliasFigures
from gateway.pipeline.aliases.rewrite import rename
from gateway.pipeline.aliases.served_versions import VERSIONS_NAMED, ServedVersions, just_gone, versions_of
from gateway.pipeline.aliases.target_choice import TargetChoice
from gateway.pipeline.relay import HeaderList, Response, Run
from shared.protocol.routes import ANY_ROUTE

VERSION = b"x-trunkline-version"
FALLBACK = b"x-trunkline-fallback"
ALLOW = "allow"
"""The value of :data:`FALLBACK` that allows every fallback the operator has set."""

HEADER_CHARS = 4096
"""How many characters of :data:`FALLBACK` are read."""

_PRINTED = bytes.maketrans(bytes(range(32)) + b"\x7f", b"?" * 33)

_SATURATED = (QueueFull, QueueTimeout, EngineBusy, NoDeployment)
"""The errors on which a fallback is tried."""


class MirrorSink(Protocol):
    """Where copies go; :class:`gateway.pipeline.aliases.mirror.Mirrors`."""

    def offer(self, mirror: AliasMirror, request: Request, key: str) -> None: ...


@dataclass(eq=False)
class AliasResolver:
    """Resolves the names that requests ask for. Belongs to the event loop's thread."""

    aliases: AliasCache
    index: ModelIndex
    mirrors: MirrorSink
    figures: AliasFigures
    clock: Callable[[], float]
    grace_s: float
    """So long requests wait for a version whose last deployment has just gone."""

    def __post_init__(self) -> None:
        self.serves = ServedVersions(self.index, self.clock)

    def resolve(self, fields: Mapping[bytes, bytes], request: Request) -> "AliasResolution | None":
        """How ``request``, with these header fields, goes on; None: as it is. From now on the request is one
        for a model. Raises BadRequest for a version that there is not, and PathTooLong."""
        choice = self.aliases.choices.get(request.model)
        if choice is not None:
            request.alias = request.model
        elif VERSION in fields:
            choice = TargetChoice(Alias(request.model))
        else:
            return None
        return AliasResolution(self, choice, request, fields)


class AliasResolution:
    """One request's. ``request`` is the one that is asked or answered, another one than at first after a
    fallback; the first again when all were refused."""

    def __init__(
        self, resolver: AliasResolver, choice: TargetChoice, request: Request, fields: Mapping[bytes, bytes]
    ) -> None:
        self.request = self._first = request
        self._resolver = resolver
        self._alias = choice.alias
        self._allowed = _allowed(self._alias, fields.get(FALLBACK))
        self._key = session_key(self._alias, request)
        version = fields.get(VERSION, b"").decode("latin-1").strip()
        self._ranked = self._of_version(version, request) if version else choice.ranked(self._key)
        served = next(filter(self._serves, self._ranked), None)
        self._unserved = served is None
        self._target = served or self._ranked[0]
        self._fallback: AliasTarget | None = None
        _aim(request, self._target)

    async def run(self, run: Run) -> Response:
        """The answer, by ``run``. Raises what that raises; when nobody may answer instead, what was said of
        the first choice."""
        mirror = self._alias.mirror
        if mirror is not None and self._first.route != ANY_ROUTE and not mirror.target.same(self._target):
            self._resolver.mirrors.offer(mirror, self._first, self._key)
        first: RequestError | None = None
        for request in self._requests():
            self.request = request
            try:
                if self._unserved:
                    self._check(request)
                response = await run(request)
            except _SATURATED as error:
                first = first or error
                continue
            if self._fallback is not None:
                self._resolver.figures.fell_back(self._alias.name, str(self._fallback))
            return response
        assert first is not None
        self.request = self._first
        raise first

    def headers(self, response: Response, *, facts: bool) -> HeaderList:
        """What tells the client who answered. That another model did it learns in any case."""
        headers: HeaderList = []
        if facts:
            answered = AliasTarget(self.request.model, response.version or None)
            headers.append((b"x-trunkline-model", _field(str(answered))))
        if self._fallback is not None:
            headers.append((FALLBACK, _field(self._fallback.model)))
        return headers

    # --- Steps ---

    def _requests(self) -> Iterator[Request]:
        """The request for its first choice, then for each fallback; each is made only after the one before
        failed."""
        yield self._first
        if self._first.body.rest_begun:
            return
        if not self._serves(self._target):
            others = (each for each in self._ranked if each is not self._target and self._serves(each))
            other = next(others, None)
            if other is not None and (again := self._for_target(other)) is not None:
                self._target = other
                yield again
        for named in self._allowed:
            target = self._resolved(named)
            if target.same(self._target) or not self._serves(target):
                continue
            if (again := self._for_target(target)) is not None:
                self._fallback = target
                yield again

    def _serves(self, target: AliasTarget) -> bool:
        return self._resolver.serves(target, self._first)

    def _resolved(self, named: AliasTarget) -> AliasTarget:
        """What a fallback that names an alias stands for."""
        choice = self._resolver.aliases.choices.get(named.model) if named.version is None else None
        if choice is None:
            return named
        ranked = choice.ranked(session_key(choice.alias, self._first))
        return next(filter(self._serves, ranked), ranked[0])

    def _for_target(self, target: AliasTarget) -> Request | None:
        """The request once more, for ``target``. What it was before may still be being let go of. None: with
        that model's name its path is too long."""
        again = replace(
            self._first,
            body=self._first.body.again(),
            attempts=list(self._first.attempts),
            failed=dict(self._first.failed),
            continuing=False,
            preempted=0,
        )
        try:
            _aim(again, target)
        except PathTooLong:
            return None
        return again

    def _check(self, request: Request) -> None:
        """Raises NoDeployment when nothing is to be waited for: the queue is one of the model, whatever the
        version, and would hold the request until its time is over."""
        self._unserved = False
        resolver, model, target = self._resolver, request.model, self._target
        served = resolver.index.availability(model, request.route, request.where)
        unknown = served is Availability.UNKNOWN and not self._alias.empty
        other = served is Availability.SERVED and request.version is not None
        if unknown or (other and not just_gone(resolver.index, model, resolver.clock(), resolver.grace_s)):
            name, model = self._alias.name, str(target)
            what = "" if model == name else f" stands for {model} here, which"
            raise NoDeployment(
                f"{name!r}{what} is served by no agent now; try again later.",
                param="model",
                retry_after_s=NO_DEPLOYMENT_RETRY_S,
            )

    def _of_version(self, version: str, request: Request) -> Sequence[AliasTarget]:
        """The target that the client asks for. Raises BadRequest."""
        index = self._resolver.index
        known: set[str] = set()
        for target in self._alias.stands_for:
            offered = versions_of(index, target.model) if target.version is None else {target.version}
            if version in offered:
                return (AliasTarget(target.model, version),)
            known |= offered
        named = ", ".join(sorted(each for each in known if each)[:VERSIONS_NAMED]) or "none"
        raise BadRequest(
            f"{request.model!r} has no version {version[:80]!r} here. Versions there are: {named}.",
            param=VERSION.decode(),
            code="version_not_found",
        )


def session_key(alias: Alias, request: Request) -> str:
    """The key by which a target is chosen: the same for a tenant's session, or different for each request."""
    if alias.sticky and request.session_key is not None:
        return f"{request.principal.tenant}\n{request.session_key}"
    return request.id


def _aim(request: Request, target: AliasTarget) -> None:
    rename(request, target.model)
    request.version, request.target = target.version, str(target)


def _allowed(alias: Alias, field: bytes | None) -> Sequence[AliasTarget]:
    """Of the alias's fallbacks those that the client allows: all in the operator's order, or those it names
    in its own."""
    if field is None or not alias.fallback:
        return ()
    names = [name.strip() for name in field[:HEADER_CHARS].decode("latin-1").split(",")]
    if len(names) == 1 and names[0].lower() == ALLOW:
        return alias.fallback
    by_name = {str(each): each for each in alias.fallback}
    return [by_name[name] for name in dict.fromkeys(names) if name in by_name]


def _field(text: str) -> bytes:
    """As a header's value. A version is whatever its agent says."""
    return text.encode("latin-1", "replace").translate(_PRINTED)
