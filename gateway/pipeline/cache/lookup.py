"""The stage at which an answer may be in the cache already, or on its way to an identical request.

Answers in one piece are read whole before anybody gets them, so that who leads and who follows do not wait
for each other's clients. Streams are recorded as they pass, and shared only once they are whole.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.domain.errors import DeadlineExceeded, StreamBroken
from gateway.domain.request import Request
from gateway.observability.gauges import FamilyCollector
from gateway.observability.metric_table import BoundedLabels, MetricTable, counter
from gateway.observability.metrics import MODEL_LABELS
from gateway.pipeline.bodies.facts import is_short, read_json
from gateway.pipeline.cache.answers import (
    CachedResponse,
    ReadAhead,
    Recording,
    content_headers,
    is_complete,
    is_shareable,
)
from gateway.pipeline.cache.cache import AnswerCache, CachedAnswer, CacheKey, key_of
from gateway.pipeline.cache.rules import (
    HEADER,
    CacheDirective,
    CacheRule,
    CacheSettings,
    deterministic,
    read_directive,
)
from gateway.pipeline.cache.shared_requests import SharedRequest, SharedRequests
from gateway.pipeline.client_body import BodyKind, ClientBody
from gateway.pipeline.client_head import ClientHead
from gateway.pipeline.relay import HeaderList, Response, Run, as_request_error

MOST_FOLLOWED = 2
"""Others that one request waits for, one after the other, before it goes its own way."""


class CacheMetrics(MetricTable):
    """What is counted of one gateway's cache."""

    requests = counter(
        "trunkline_cache_requests",
        "Requests whose answer might be reused: hit, miss, coalesced with another, or bypass.",
        "model",
        "outcome",
    )

    def __init__(self, registry: CollectorRegistry, cache: AnswerCache) -> None:
        self._models = BoundedLabels(MODEL_LABELS)
        super().__init__(registry, {"model": self._models})
        FamilyCollector(registry, cache.figures)

    def know_models(self, models: Collection[str]) -> None:
        """Give these labels of their own, as far as there is room; the operator's rules name them."""
        self._models.clear()
        for model in sorted(models):
            self._models.add(model)


class CacheStage:
    """One for a gateway. Belongs to the event loop's thread."""

    def __init__(
        self,
        settings: CacheSettings,
        cache: AnswerCache,
        metrics: CacheMetrics,
        serves: Callable[[Request, str], bool],
        clock: Callable[[], float],
    ) -> None:
        """``serves(request, version)`` says whether a deployment of ``version`` is there that may take
        ``request``; ``clock`` is the event loop's."""
        self.settings = settings
        self.cache = cache
        self.metrics = metrics
        self.shared_requests = SharedRequests(settings.followers)
        self.serves = serves
        self.clock = clock
        self._rule_by_header = CacheRule(settings.header_cache_s)
        self.on = False
        """Whether any answer may be reused."""
        self.retune(settings.models, by_header=settings.by_header)

    def retune(self, models: Mapping[str, CacheRule], *, by_header: bool) -> None:
        """Set the rules. What is in the cache stays until its time is over, and serves as they allow."""
        self._rules, self._by_header = dict(models), by_header
        self.on = by_header or any(rule.cache_s or rule.coalesce for rule in models.values())
        self.metrics.know_models(models)

    def lookup(self, head: ClientHead, body: ClientBody) -> "CacheLookup | None":
        """The lookup of a request with this head and body; None: its body has none. Raises BadRequest."""
        directive = read_directive(head.fields.get(HEADER))
        readable = body.kind is BodyKind.JSON and head.method == "POST"
        return CacheLookup(self, directive) if readable else None

    def rule(self, model: str, directive: CacheDirective) -> CacheRule | None:
        """What is allowed for requests to ``model``; None: nothing, and no answer mentions the cache."""
        rule = self._rules.get(model)
        if rule is None and self._by_header and directive in (CacheDirective.ALLOW, CacheDirective.REFRESH):
            return self._rule_by_header
        return rule


class CacheLookup:
    """One client's request at the cache. ``outcome`` is empty where no rule concerns it."""

    def __init__(self, stage: CacheStage, directive: CacheDirective) -> None:
        self._stage = stage
        self._directive = directive
        self.outcome = ""
        self._age_s: int | None = None

    def headers(self) -> HeaderList:
        """What tells the client the outcome."""
        if not self.outcome:
            return []
        headers: HeaderList = [(HEADER, self.outcome.encode("ascii"))]
        if self._age_s is not None:
            headers.append((b"age", b"%d" % self._age_s))
        return headers

    async def run(self, request: Request, run: Run) -> Response:
        """The answer: from the cache, another request's, or by ``run``. Raises what that raises, and
        DeadlineExceeded."""
        self.outcome, self._age_s = "", None
        rule = self._stage.rule(request.model, self._directive)
        if rule is None:
            return await run(request)
        members = self._members(request)
        if members is None:
            self._count(request, "bypass")
            return await run(request)
        key = key_of(request, members)
        if self._directive is CacheDirective.REFRESH:
            return await self._compute(key, rule, request, run)
        return await self._find(key, rule, request, run)

    # --- Steps ---

    def _members(self, request: Request) -> Mapping[str, Any] | None:
        """What the request says, if its answer depends on nothing else."""
        body = request.body
        if self._directive is CacheDirective.NO or body.rest is not None or not is_short(body.pieces):
            return None
        members = read_json(body.prefix)
        return members if deterministic(request.route, members, body.prefix) else None

    async def _find(self, key: CacheKey, rule: CacheRule, request: Request, run: Run) -> Response:
        stage, name = self._stage, (key, request.tier)
        coalesce = rule.coalesce and not request.streaming
        for _ in range(MOST_FOLLOWED):
            entry = self._cached(key, rule, request)
            if entry is not None:
                self._age_s = entry.age_s(stage.clock())
                self._count(request, "hit")
                return CachedResponse(entry)
            if not coalesce:
                break
            shared = stage.shared_requests.lead(name)
            if shared is not None:
                return await self._lead(shared, key, rule, request, run)
            try:
                entry = await stage.shared_requests.follow(name, request.deadline_s)
            except TimeoutError:
                raise DeadlineExceeded(
                    "The request's deadline passed while it waited for the answer to an identical one."
                ) from None
            if entry is not None:
                self._count(request, "coalesced")
                return CachedResponse(entry)
        return await self._compute(key, rule, request, run)

    def _cached(self, key: CacheKey, rule: CacheRule, request: Request) -> CachedAnswer | None:
        """What the cache has and the rule allows."""
        if not rule.cache_s:
            return None
        now = self._stage.clock()
        entry = self._stage.cache.get(key, now)
        if entry is None or now >= entry.kept_s + rule.cache_s:
            return None
        return entry if self._stage.serves(request, entry.version) else None

    def _count(self, request: Request, outcome: str) -> None:
        self.outcome = outcome
        self._stage.metrics.requests(request.model, outcome)

    async def _compute(self, key: CacheKey, rule: CacheRule, request: Request, run: Run) -> Response:
        """A new answer, which is put into the cache."""
        self._count(request, "miss")
        response = await run(request)
        shareable = is_shareable(response.status, response.headers, streaming=request.streaming)
        if not rule.cache_s or not shareable:
            return response
        reservation = _Reservation(self._stage)

        def ended(body: bytes | None) -> None:
            reservation.release()
            if body is not None:
                self._keep(key, rule, request, response, body)

        return Recording(response, reservation.grow, ended)

    async def _lead(
        self, shared: SharedRequest, key: CacheKey, rule: CacheRule, request: Request, run: Run
    ) -> Response:
        """A new answer, read whole for all that follow."""
        entry, too_long = None, False
        try:
            self._count(request, "miss")
            response = await run(request)
            if not is_shareable(response.status, response.headers, streaming=False):
                return response
            reservation = _Reservation(self._stage)
            chunks, whole = await self._read(response, reservation)
            too_long = not whole
            if whole:
                body = b"".join(chunks)
                if rule.cache_s:
                    reservation.release()  # it counts as an entry of the cache
                entry = self._keep(key, rule, request, response, body)
                chunks = [body] if body else []
            return ReadAhead(response, chunks, reservation.release)
        finally:
            self._stage.shared_requests.finish(shared, entry, too_long=too_long)

    async def _read(self, response: Response, reservation: "_Reservation") -> tuple[list[bytes], bool]:
        """The body, and whether it is whole: else it is as much as may be shared."""
        chunks: list[bytes] = []
        try:
            while new := await response.next_chunks():
                size_bytes = sum(map(len, new))
                chunks += new
                response.consumed(size_bytes)
                if not reservation.grow(size_bytes):
                    return chunks, False
        except BaseException as error:
            reservation.release()
            response.abort()
            if isinstance(error, StreamBroken):
                raise as_request_error(error) from error
            raise
        return chunks, True

    def _keep(
        self, key: CacheKey, rule: CacheRule, request: Request, response: Response, body: bytes
    ) -> CachedAnswer | None:
        """The whole answer for others, put into the cache if the rule says so; None when it must not be
        shared."""
        if response.continued or not is_complete(body, request.route, streaming=request.streaming):
            return None
        now = self._stage.clock()
        headers = content_headers(response.headers)
        entry = CachedAnswer(headers, body, response.agent, response.version, now, now + rule.cache_s)
        if rule.cache_s:
            self._stage.cache.put(key, entry, now)
        return entry


class _Reservation:
    """Memory for an answer that is being collected: as much as one may have, while there is room."""

    def __init__(self, stage: CacheStage) -> None:
        self._cache = stage.cache
        self._most_bytes = stage.settings.entry_bytes
        self._bytes = 0

    def grow(self, size_bytes: int) -> bool:
        """Take so much more. False, and nothing has changed, when there is no room."""
        if self._bytes + size_bytes > self._most_bytes or not self._cache.reserve(size_bytes):
            return False
        self._bytes += size_bytes
        return True

    def release(self) -> None:
        """Idempotent."""
        self._cache.release(self._bytes)
        self._bytes = 0
