"""Limits on a request's whole way: what is set aside, what is settled, what its client is told."""

import asyncio
import heapq
import random

import orjson
import pytest

from gateway.domain.aliases import Alias, AliasTarget
from gateway.domain.errors import DeadlineExceeded, EngineError, QueueFull, RateLimited, StreamBroken
from gateway.domain.quotas import Budgets, Price, Rates, TenantLimits
from gateway.domain.request import Request, RequestBody
from gateway.observability.gauges import BudgetFigures
from gateway.quota import ReservedUsage
from gateway.storage import Account, Amount
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Trailers, Usage
from tests.gateway.api.support import BEARER, EVENTS, FakeResponse, json_response
from tests.gateway.pipeline.aliases.support import Desk, served
from tests.gateway.quota.spent import spend
from tests.gateway.quota.support import CHAT, Stage

TOLD = {
    f"x-ratelimit-{part}-{what}"
    for part in ("limit", "remaining", "reset")
    for what in ("requests", "tokens")
}


def ask(**more: object) -> bytes:
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **more})


async def test_who_has_no_limits_hears_nothing_of_them() -> None:
    stage = Stage()
    call = await stage.surface.post(CHAT, ask())
    assert call.status == 200
    assert not TOLD & set(call.headers)
    assert stage.limits.guard(stage.keys.principal) is None


async def test_every_answer_says_what_is_left_at_that_moment() -> None:
    stage = Stage(Rates(rpm=3, tpm=1000))
    stage.answer(Usage(12, 20))
    first = await stage.surface.post(CHAT, ask(max_tokens=90))
    assert {name: first.headers[name] for name in TOLD} == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "900",
        "x-ratelimit-reset-tokens": "1m0s",
    }
    assert stage.left() == (2, 1000 - 32), "settled by what the engine counted"
    stage.now += 20.5
    wrong = await stage.surface.post(CHAT, b"no json")
    assert (wrong.status, wrong.headers["x-ratelimit-remaining-tokens"]) == (400, "968")
    assert wrong.headers["x-ratelimit-reset-requests"] == "39.5s"
    for _ in range(2):
        await stage.surface.post(CHAT, ask(max_tokens=90))
    refused = await stage.surface.post(CHAT, ask(max_tokens=90))
    assert (refused.status, set(refused.headers) & TOLD) == (429, TOLD)
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


async def test_a_refusal_says_which_limit_and_when_to_come_back() -> None:
    stage = Stage(Rates(rpm=1), TenantLimits(Rates(tpm=100)))
    stage.answer(Usage(10, 90))
    assert (await stage.surface.post(CHAT, ask(max_tokens=90))).status == 200
    stage.now += 18.0
    call = await stage.surface.post(CHAT, ask(max_tokens=90))
    error = orjson.loads(call.content)["error"]
    assert (call.status, error["type"], error["code"]) == (429, "requests", "rate_limit_exceeded")
    assert error["message"].startswith("Rate limit reached: requests per minute of API key 'laptop': limit 1")
    assert (call.headers["retry-after"], call.headers["retry-after-ms"]) == ("42", "42000")
    assert stage.refusals == [("m", "rate_limit_exceeded")]
    assert stage.finished == [("m", 200), ("m", 429)], "the log says of what"
    assert len(stage.dispatcher.requests) == 1
    stage.now += 42.0
    assert (await stage.surface.post(CHAT, ask(max_tokens=90))).status == 200
    huge = await stage.surface.post(CHAT, ask(max_tokens=91))
    error = orjson.loads(huge.content)["error"]
    assert (error["type"], huge.headers["x-should-retry"]) == ("tokens", "false")
    assert (
        "too large for the tokens per minute of tenant 'acme': limit 100, requested 101" in error["message"]
    )


async def test_a_guess_of_the_answer_makes_no_request_too_large_and_what_it_has_beyond_is_owed() -> None:
    stage = Stage(Rates(tpm=40))
    stage.answer(Usage(10, 90))
    call = await stage.surface.post(CHAT, ask())
    assert (call.status, call.headers["x-ratelimit-remaining-tokens"]) == (200, "0")
    refused = await stage.surface.post(CHAT, ask(max_tokens=1))
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    assert refused.headers["x-ratelimit-reset-tokens"] == "3m0s", "100 of 40 a minute"
    assert refused.headers["retry-after"] == "120"


async def test_a_budget_that_is_used_up_is_a_quota_and_not_worth_a_retry() -> None:
    stage = Stage(tenant=TenantLimits(budgets=Budgets(money_per_day=1.0)))
    stage.source.set(stage.source.terms.tenants["acme"], m=Price(input=0.0, output=20_000.0))
    stage.limits.refresh()
    stage.answer(Usage(10, 30))
    assert (await stage.surface.post(CHAT, ask(max_tokens=50))).status == 200
    mine = Account("2026-11-21", "k1", "acme", "m", "gpu/1")
    assert stage.ledger.take() == {mine: Amount(1, 10, 30, 0, 0.0, cost=0.6)}
    call = await stage.surface.post(CHAT, ask(max_tokens=50))
    error = orjson.loads(call.content)["error"]
    assert (call.status, error["type"], error["code"]) == (429, "insufficient_quota", "insufficient_quota")
    assert "money per day of tenant 'acme': limit 1, used 0.6, this request up to 1." in error["message"]
    assert (call.headers["retry-after"], call.headers["x-should-retry"]) == ("120", "false")
    never = await stage.surface.post(CHAT, ask(max_tokens=51))
    assert (never.status, "retry-after" in never.headers) == (429, False), "no day has room for it"
    assert (await stage.surface.post(CHAT, ask(max_tokens=20))).status == 200
    stage.now += 86_400.0
    assert (await stage.surface.post(CHAT, ask(max_tokens=50))).status == 200, "another day"


async def test_gpu_seconds_count_when_attempts_end_and_are_reserved_by_what_tokens_took() -> None:
    stage = Stage(tenant=TenantLimits(budgets=Budgets(gpu_seconds_per_month=10.0)))

    async def serve(request: Request) -> FakeResponse:
        request.attempts.append("gpu/1")
        request.gpu_s += 4.0
        stage.ledger.ran(request, "gpu/1", 4.0)
        response = json_response()
        response.trailers = Trailers(usage=Usage(10, 30))
        return response

    stage.dispatcher.serve = serve
    statuses = [(await stage.surface.post(CHAT, ask(max_tokens=30))).status for _ in range(3)]
    assert statuses == [200, 200, 429], "4 s each, and 2 s are left"
    assert sum(amount.gpu_s for amount in stage.ledger.take().values()) == 8.0


async def test_what_failed_or_never_began_is_given_back() -> None:
    stage = Stage(Rates(rpm=10, tpm=1000))
    stage.dispatcher.fail(EngineError("gone"))
    assert (await stage.surface.post(CHAT, ask(max_tokens=500))).status == 502
    assert stage.left() == (10, 1000)
    stage.answer(None, status=400)
    assert (await stage.surface.post(CHAT, ask(max_tokens=500))).status == 400
    assert stage.left() == (9, 1000), "an engine refused it: a request, without tokens"


async def test_a_client_that_leaves_pays_for_what_it_had_and_no_more() -> None:
    stage = Stage(Rates(tpm=1000, concurrency=1))
    response = FakeResponse(200, EVENTS, (b"data: 1\n\n",), ended=False)

    async def serve(request: Request) -> FakeResponse:
        request.attempts.append("gpu/1")
        request.input_tokens, request.seen_tokens = 10, 7
        return response

    stage.dispatcher.serve = serve
    body = ask(max_tokens=300, stream=True)
    call = stage.surface.ask("POST", CHAT, (b"content-length", b"%d" % len(body)), BEARER)
    call.body(body)
    await call.until(lambda call: len(call.sent) > 1)
    assert call.headers["x-ratelimit-remaining-tokens"] == "690"
    second = await stage.surface.post(CHAT, body)
    assert (second.status, b"requests at once" in second.content) == (429, True)
    call.disconnect()
    await call.done()
    assert stage.left() == (None, 1000 - 17)
    assert stage.ledger.take()[Account("2026-11-21", "k1", "acme", "m", "gpu/1")] == Amount(1, 10, 7)
    stage.answer(Usage(1, 1))
    assert (response.aborted, (await stage.surface.post(CHAT, ask())).status) == (True, 200)


@pytest.mark.parametrize(
    ("attempts", "troubles", "left"),
    [
        ([], [], (10, 1000)),
        (["gpu/1"], [], (9, 970)),
        (["gpu/1"], ["refused"], (10, 1000)),
        (["gpu/1", "gpu/1"], ["refused"], (9, 970)),
        (["gpu/1", "gpu/1"], ["unreachable", "preempted"], (9, 970)),
    ],
)
async def test_a_client_that_leaves_before_anything_is_said_pays_only_if_an_engine_had_it(
    attempts: list[str], troubles: list[str], left: tuple[int, int]
) -> None:
    stage = Stage(Rates(rpm=10, tpm=1000))
    stage.dispatcher.hold()
    body = ask(max_tokens=20)
    call = stage.surface.ask("POST", CHAT, (b"content-length", b"%d" % len(body)), BEARER)
    call.body(body)
    await stage.dispatcher.arrived.wait()
    request = stage.dispatcher.request
    request.attempts += attempts
    for why in troubles:
        request.note_trouble("gpu/1", why)
    request.input_tokens, request.output_tokens = 10, 20
    call.disconnect()
    await call.done()
    assert stage.left() == left
    assert len(stage.ledger.take()) == (left == (9, 970))


async def test_a_client_that_said_how_long_it_waits_pays_when_that_is_over_as_if_it_had_left() -> None:
    for had, waits_s, left in ((1, b"0.5", (9, 970)), (0, b"0.5", (10, 1000)), (1, b"600", (10, 1000))):
        stage = Stage(Rates(rpm=10, tpm=1000))
        came_s, attempts = asyncio.get_running_loop().time(), ["gpu/1"] * had

        async def serve(
            request: Request, stage: Stage = stage, attempts: list[str] = attempts
        ) -> FakeResponse:
            request.attempts += attempts
            request.input_tokens, request.output_tokens = 10, 20
            raise DeadlineExceeded("The engine did not begin to answer in the time there was.")

        stage.dispatcher.serve, stage.now = serve, came_s + 3.0
        call = await stage.surface.post(CHAT, ask(max_tokens=20), (b"x-stainless-read-timeout", waits_s))
        assert (call.status, stage.left()) == (504, left)
        assert len(stage.ledger.take()) == (left == (9, 970))


async def test_a_client_that_leaves_while_a_fallback_answers_pays_for_that_one() -> None:
    stage = Stage(Rates(rpm=10, tpm=1000))
    desk = Desk(Alias("m", fallback=(AliasTarget("light"),)))
    desk.serve(served("m"), served("light"))
    stage.name(desk.versions)

    async def serve(request: Request) -> FakeResponse:
        if request.model == "m":
            raise QueueFull("full")
        request.attempts.append("gpu/1")
        request.input_tokens, request.output_tokens = 10, 20
        begun.set()
        return await never

    never: asyncio.Future[FakeResponse] = asyncio.get_running_loop().create_future()
    begun, stage.dispatcher.serve, body = asyncio.Event(), serve, ask(max_tokens=20)
    length = (b"content-length", b"%d" % len(body))
    call = stage.surface.ask("POST", CHAT, length, BEARER, (b"x-trunkline-fallback", b"allow"))
    call.body(body)
    await begun.wait()
    call.disconnect()
    await call.done()
    assert stage.left() == (9, 970)
    assert set(stage.ledger.take()) == {Account("2026-11-21", "k1", "acme", "light", "gpu/1")}
    assert stage.finished == [("light", 499)]


async def test_an_answer_that_breaks_pays_for_what_came() -> None:
    stage = Stage(Rates(tpm=1000))
    response = stage.dispatcher.answer(FakeResponse(200, EVENTS, (b"data: 1\n\n",), ended=False))
    response.break_off(StreamBroken(ErrorCode.INTERNAL, "lost"))
    await stage.surface.post(CHAT, ask(max_tokens=500, stream=True))
    assert stage.left() == (None, 1000 - stage.dispatcher.request.input_tokens)


async def test_what_an_engine_says_of_its_own_limits_is_not_passed_on() -> None:
    stage = Stage(Rates(rpm=3))
    response = stage.dispatcher.answer(json_response())
    response.headers = (*response.headers, ("x-ratelimit-remaining-requests", "99"))
    call = await stage.surface.post(CHAT, ask())
    told = [value for name, value in call.sent[0]["headers"] if name == b"x-ratelimit-remaining-requests"]
    assert told == [b"2"]


async def test_a_kept_answer_is_a_request_without_tokens() -> None:
    stage = Stage(Rates(rpm=10, tpm=1000))
    response = stage.dispatcher.answer(json_response())
    response.attempts = 0
    await stage.surface.post(CHAT, ask(max_tokens=500))
    assert stage.left() == (9, 1000)


async def test_a_change_counts_from_the_next_request_on() -> None:
    stage = Stage(tenant=TenantLimits(Rates(rpm=1)))
    assert [(await stage.surface.post(CHAT, ask())).status for _ in range(2)] == [200, 429]
    stage.source.set(TenantLimits(Rates(rpm=2, tpm=100)))
    stage.limits.refresh()
    assert (await stage.surface.post(CHAT, ask())).headers["x-ratelimit-remaining-requests"] == "0"
    stage.source.set(None)
    stage.limits.refresh()
    call = await stage.surface.post(CHAT, ask())
    assert (call.status, "x-ratelimit-limit-requests" in call.headers) == (200, False)
    assert stage.limits.guard(stage.keys.principal) is None


async def test_five_hundred_at_once_stay_within_a_limit_of_tokens() -> None:
    """Each may have 100 tokens of an answer, and has 10 to 100."""
    stage, draw = Stage(Rates(tpm=20_000)), random.Random(3)
    used, gate, decided = [0], asyncio.Event(), asyncio.Event()

    def decide() -> None:
        if len(stage.dispatcher.requests) + len(stage.refusals) == 500:
            decided.set()

    def refused(model: str, code: str) -> None:
        stage.refusals.append((model, code))
        decide()

    async def serve(request: Request) -> FakeResponse:
        request.attempts.append("gpu/1")
        decide()
        await gate.wait()
        response, tokens = json_response(), draw.randint(10, 100)
        response.trailers = Trailers(usage=Usage(10, tokens))
        used[0] += 10 + tokens
        return response

    stage.dispatcher.serve, stage.limits.refused = serve, refused
    calls = [asyncio.create_task(stage.surface.post(CHAT, ask(max_tokens=100))) for _ in range(500)]
    async with asyncio.timeout(60):
        await decided.wait()
    gate.set()
    statuses = [(await call).status for call in calls]
    let_in = statuses.count(200)
    told = f"{let_in} of 500 let in at once, {used[0]} tokens used of 20000 in the minute"
    assert let_in == 20_000 // 110, told
    assert used[0] <= 20_000, told
    assert stage.left() == (None, 20_000 - used[0]), told


class Loop:
    """500 clients that ask for 170 tokens, wait as they are told, and ask again when they have an answer."""

    def __init__(self, limit: int, *, bounded: bool, minutes: int) -> None:
        self.stage, self.draw = Stage(Rates(tpm=limit)), random.Random(11)
        self.stage.limits.bounds = lambda request: (20, 150 if bounded else 35)
        guard = self.stage.limits.guard(self.stage.keys.principal)
        assert guard is not None
        self.guard, self.bounded, self.end_s = guard, bounded, self.stage.now + 60 * minutes
        body = RequestBody(b"")
        who = self.stage.keys.principal
        self.request = Request("r", who, "POST", CHAT, (), "m", "chat", True, body, 0.0, "chat")
        self.request.most_tokens = 150 if bounded else None
        self.events: list[tuple[float, int, ReservedUsage | None, int]] = [
            (self.stage.now + self.draw.random(), client, None, 0) for client in range(500)
        ]
        heapq.heapify(self.events)
        self.let_in: list[tuple[float, int]] = []

    def run(self) -> None:
        while self.stage.now < self.end_s:
            self.stage.now, client, held, tokens = heapq.heappop(self.events)
            if held is None:
                self.ask(client)
            else:
                held.used(self.request, Usage(20, tokens - 20), 200, 1)
                held.__exit__(None, None, None)
                heapq.heappush(self.events, (self.stage.now, client, None, 0))

    def ask(self, client: int) -> None:
        now, draw = self.stage.now, self.draw
        try:
            held = self.guard.reserve(self.request)
        except RateLimited as refusal:
            back_s = now + (refusal.retry_after_s or 0.0) + 5 * draw.random()
            heapq.heappush(self.events, (back_s, client, None, 0))
            return
        tokens = 20 + int(draw.expovariate(1 / 70))
        tokens = min(tokens, 170) if self.bounded else tokens
        self.let_in.append((now, tokens))
        heapq.heappush(self.events, (now + draw.uniform(1, 30), client, held, tokens))


@pytest.mark.parametrize(("bounded", "most_over"), [(True, 0.0), (False, 0.6)])
def test_five_hundred_in_a_closed_loop_stay_within_it_in_every_minute(
    bounded: bool, most_over: float
) -> None:
    """With ``max_tokens`` no minute has more than the limit. Without, and with guesses of half of what
    answers are, a minute may have more, and the mean has not."""
    limit, minutes = 60_000, 3
    loop = Loop(limit, bounded=bounded, minutes=minutes)
    loop.run()
    sums = [
        sum(tokens for at_s, tokens in loop.let_in if start_s < at_s <= start_s + 60)
        for start_s in range(1000, 1000 + 60 * (minutes - 1) + 1, 5)
    ]
    total = sum(tokens for _, tokens in loop.let_in)
    told = f"most in a minute {max(sums)} of {limit}, {len(loop.let_in)} let in, mean {total / minutes:.0f}"
    assert max(sums) <= limit * (1 + most_over), told
    assert max(sums) >= 0.9 * limit, f"it is made use of: {told}"
    assert total <= limit * minutes * (1 + most_over / minutes), told
    print(told)  # noqa: T201


async def test_how_far_a_tenants_budgets_are_used_up_is_told() -> None:
    stage = Stage(tenant=TenantLimits(budgets=Budgets(tokens_per_day=1000, money_per_month=50.0)))
    spend(stage.limits.spending, "another", 999, 0.0, 49.0, stage.limits.wall())
    tenant = stage.keys.principal.tenant
    spend(stage.limits.spending, tenant, 250, 0.0, 40.0, stage.limits.wall())
    assert list(stage.limits.budget_figures()) == [
        BudgetFigures(tenant, "day", 0.25),
        BudgetFigures(tenant, "month", 0.8),
    ]
