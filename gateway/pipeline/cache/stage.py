"""The stage of a request's way at which an answer may be there already, or on its way to somebody else.

Answers in one piece are read whole before anybody is told of them, so that who leads and who follows do not
wait for each other's clients. Streams are recorded as they pass, and shared only once they are whole.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gateway.domain.errors import DeadlineExceeded, StreamBroken
from gateway.domain.request import Request
from gateway.pipeline.bodies import is_short, read_json
from gateway.pipeline.cache.answers import (
    KeptAnswer,
    ReadAhead,
    Recording,
    content_headers,
    sharable,
    sound,
)
from gateway.pipeline.cache.cache import AnswerCache, CachedAnswer, CacheKey, key_of
from gateway.pipeline.cache.figures import ReuseFigures
from gateway.pipeline.cache.rules import HEADER, ReuseSettings, Rule, Wish, deterministic, read_wish
from gateway.pipeline.cache.shared_requests import SharedRequest, SharedRequests
from gateway.pipeline.client_body import BodyKind, ClientBody
from gateway.pipeline.client_head import ClientHead
from gateway.pipeline.relay import HeaderList, Response, Run, as_request_error

FOLLOWED_MOST = 2
"""Others that one request waits for, one after the other, before it goes its own way."""


class Reuse:
    """One for a gateway. Belongs to the event loop's thread."""

    def __init__(
        self,
        settings: ReuseSettings,
        cache: AnswerCache,
        figures: ReuseFigures,
        serves: Callable[[Request, str], bool],
        clock: Callable[[], float],
    ) -> None:
        """``serves(request, version)`` says whether a deployment of ``version`` is there that may take
        ``request``; ``clock`` is the event loop's."""
        self.settings = settings
        self.cache = cache
        self.figures = figures
        self.shared_requests = SharedRequests(settings.followers)
        self.serves = serves
        self.clock = clock
        self._asked_rule = Rule(settings.header_cache_s)
        self._rules: Mapping[str, Rule] = {}
        self._by_header = settings.by_header
        self.on = False
        """Whether anything may be reused at all."""
        self.retune(settings.models, by_header=settings.by_header)

    def retune(self, models: Mapping[str, Rule], *, by_header: bool) -> None:
        """Rules from now on. What is kept stays until its time is over, and is told as far as they allow."""
        self._rules, self._by_header = dict(models), by_header
        self.on = by_header or any(rule.cache_s or rule.coalesce for rule in models.values())
        self.figures.know_models(models)

    def use(self, head: ClientHead, body: ClientBody) -> "Use | None":
        """What may be reused for a request with this head and body; None: nothing. Raises BadRequest."""
        wish = read_wish(head.fields.get(HEADER))
        readable = body.kind is BodyKind.JSON and head.method == "POST"
        return Use(self, wish) if readable else None

    def rule(self, model: str, wish: Wish) -> Rule | None:
        """What is allowed for requests to ``model``; None: nothing, and nothing is said of it."""
        rule = self._rules.get(model)
        if rule is None and self._by_header and wish in (Wish.ALLOW, Wish.REFRESH):
            return self._asked_rule
        return rule


class Use:
    """One client's request. ``outcome`` is what became of it, "" while reuse is none of its concern."""

    def __init__(self, reuse: Reuse, wish: Wish) -> None:
        self._reuse = reuse
        self._wish = wish
        self.outcome = ""
        self._age_s: int | None = None

    def headers(self) -> HeaderList:
        """What the client is told of it."""
        if not self.outcome:
            return []
        told: HeaderList = [(HEADER, self.outcome.encode("ascii"))]
        if self._age_s is not None:
            told.append((b"age", b"%d" % self._age_s))
        return told

    def around(self, run: Run) -> Run:
        """``run`` where there is no answer yet."""
        return lambda request: self.run(request, run)

    async def run(self, request: Request, run: Run) -> Response:
        """The answer: a kept one, another's, or by ``run``. Raises what that raises, and DeadlineExceeded."""
        self.outcome, self._age_s = "", None
        rule = self._reuse.rule(request.model, self._wish)
        if rule is None:
            return await run(request)
        members = self._members(request)
        if members is None:
            return await self._alone(request, run, "bypass")
        key = key_of(request, members)
        if self._wish is Wish.REFRESH:
            return await self._fresh(key, rule, request, run)
        return await self._reused(key, rule, request, run)

    # --- Steps ---

    def _members(self, request: Request) -> Mapping[str, Any] | None:
        """What the request says, if its answer depends on nothing else."""
        body = request.body
        if self._wish is Wish.NO or body.rest is not None or not is_short(body.pieces):
            return None
        members = read_json(body.prefix)
        return members if deterministic(request.route, members, body.prefix) else None

    async def _reused(self, key: CacheKey, rule: Rule, request: Request, run: Run) -> Response:
        reuse = self._reuse
        together = rule.coalesce and not request.streaming
        name = key, request.tier
        for _ in range(FOLLOWED_MOST):
            entry = self._kept(key, rule, request)
            if entry is not None:
                self._age_s = entry.age_s(reuse.clock())
                return self._told(request, entry, "hit")
            if not together:
                break
            shared = reuse.shared_requests.lead(name)
            if shared is not None:
                return await self._lead(shared, key, rule, request, run)
            entry = await self._follow(name, request)
            if entry is not None:
                return self._told(request, entry, "coalesced")
        return await self._fresh(key, rule, request, run)

    def _kept(self, key: CacheKey, rule: Rule, request: Request) -> CachedAnswer | None:
        """What is kept and may be told now."""
        if not rule.cache_s:
            return None
        now = self._reuse.clock()
        entry = self._reuse.cache.get(key, now)
        if entry is None or now >= entry.kept_s + rule.cache_s:
            return None
        return entry if self._reuse.serves(request, entry.version) else None

    def _told(self, request: Request, entry: CachedAnswer, outcome: str) -> Response:
        self._say(request, outcome)
        return KeptAnswer(entry)

    def _say(self, request: Request, outcome: str) -> None:
        self.outcome = outcome
        self._reuse.figures.count(request.model, outcome)

    async def _alone(self, request: Request, run: Run, outcome: str) -> Response:
        self._say(request, outcome)
        return await run(request)

    async def _fresh(self, key: CacheKey, rule: Rule, request: Request, run: Run) -> Response:
        """Asked for anew, and kept."""
        response = await self._alone(request, run, "miss")
        if not rule.cache_s or not sharable(response.status, response.headers, streaming=request.streaming):
            return response
        held = _Held(self._reuse)

        def over(body: bytes | None) -> None:
            held.give_back()
            self._keep(key, rule, request, response, body)

        return Recording(response, held.more, over)

    # --- Together ---

    async def _follow(self, name: object, request: Request) -> CachedAnswer | None:
        """What another's answer is; None when there is none to be had."""
        told: asyncio.Future[CachedAnswer | None] = asyncio.get_running_loop().create_future()
        leave = self._reuse.shared_requests.follow(name, lambda entry: _settle(told, entry))
        if leave is None:
            return None
        try:
            async with asyncio.timeout_at(request.deadline_s):
                return await told
        except TimeoutError:
            raise DeadlineExceeded(
                "The request's deadline passed while it waited for the answer to an identical one."
            ) from None
        finally:
            leave()

    async def _lead(
        self, shared: SharedRequest, key: CacheKey, rule: Rule, request: Request, run: Run
    ) -> Response:
        entry, unfit = None, False
        try:
            response = await self._alone(request, run, "miss")
            if not sharable(response.status, response.headers, streaming=False):
                return response
            held = _Held(self._reuse)
            chunks, whole = await self._read(response, held)
            unfit = not whole
            if whole:
                body = b"".join(chunks)
                if rule.cache_s:
                    held.give_back()  # it counts as kept
                entry = self._keep(key, rule, request, response, body)
                chunks = [body] if body else []
            return ReadAhead(response, chunks, held.give_back)
        finally:
            self._reuse.shared_requests.finish(shared, entry, unfit=unfit)

    async def _read(self, response: Response, held: "_Held") -> tuple[list[bytes], bool]:
        """The body, and whether it is whole: else it is as much as may be shared."""
        chunks: list[bytes] = []
        try:
            while new := await response.next_chunks():
                size_bytes = sum(map(len, new))
                chunks += new
                response.consumed(size_bytes)
                if not held.more(size_bytes):
                    return chunks, False
        except BaseException as error:
            held.give_back()
            response.abort()
            if isinstance(error, StreamBroken):
                raise as_request_error(error) from error
            raise
        return chunks, True

    def _keep(
        self, key: CacheKey, rule: Rule, request: Request, response: Response, body: bytes | None
    ) -> CachedAnswer | None:
        """The whole answer as others may have it, kept if the rule says so; None when it is not fit."""
        if body is None or response.continued:
            return None
        if not sound(body, request.route, streaming=request.streaming):
            return None
        now = self._reuse.clock()
        headers = content_headers(response.headers)
        entry = CachedAnswer(headers, body, response.agent, response.version, now, now + rule.cache_s)
        if rule.cache_s:
            self._reuse.cache.put(key, entry, now)
        return entry


class _Held:
    """Memory of an answer that is being collected: as much as one may have, while there is room."""

    def __init__(self, reuse: Reuse) -> None:
        self._cache = reuse.cache
        self._most_bytes = reuse.settings.entry_bytes
        self._bytes = 0

    def more(self, size_bytes: int) -> bool:
        """Room for so much more. False, and nothing has changed, when there is none."""
        if self._bytes + size_bytes > self._most_bytes or not self._cache.hold(size_bytes):
            return False
        self._bytes += size_bytes
        return True

    def give_back(self) -> None:
        """Idempotent."""
        held_bytes, self._bytes = self._bytes, 0
        self._cache.give_back(held_bytes)


def _settle(told: "asyncio.Future[CachedAnswer | None]", entry: CachedAnswer | None) -> None:
    if not told.done():
        told.set_result(entry)
