"""Engines' own paths are held to limits like all others."""

from dataclasses import replace

import orjson
import pytest

from gateway.domain.quotas import Budgets, Price, Rates, TenantLimits
from gateway.domain.request import Request, RequestBody
from gateway.domain.scopes import limited
from shared.protocol.messages import Headers, Trailers, Usage
from tests.gateway.api.support import JSON_TYPE, FakeResponse
from tests.gateway.quota.support import Stage

GENERATE = "/engines/m/completion"
NDJSON = (("content-type", "application/x-ndjson"),)
JSON = (("content-type", "application/json"),)


def named(stage: Stage) -> Stage:
    """Its key names the engines' own paths."""
    scopes = limited(routes=["any", "chat"])
    stage.keys.principal = replace(stage.keys.principal, scopes=scopes)
    return stage


def answer(
    stage: Stage, headers: Headers, *, usage: Usage | None = None, pieces: int = 0, size_bytes: int = 0
) -> None:
    async def serve(request: Request) -> FakeResponse:
        request.attempts.append("gpu/1")
        request.seen_tokens, request.seen_bytes = pieces, size_bytes
        response = FakeResponse(200, headers, (b"x",))
        response.trailers = Trailers(usage=usage)
        return response

    stage.dispatcher.serve = serve


async def test_what_an_engine_lets_its_answer_have_is_reserved() -> None:
    stage = named(Stage(Rates(tpm=5000)))
    answer(stage, JSON, usage=Usage(3, 4))
    call = await stage.surface.post(GENERATE, b'{"prompt":"hi","n_predict":24000}', JSON_TYPE)
    error = orjson.loads(call.content)["error"]
    assert (call.status, error["code"]) == (429, "rate_limit_exceeded")
    assert "requested 24,010" in error["message"]
    assert not stage.dispatcher.requests
    call = await stage.surface.post(GENERATE, b'{"prompt":"hi","n_predict":4000}', JSON_TYPE)
    assert (call.status, stage.left()[1]) == (200, 4993), "settled by what the engine counted"


@pytest.mark.parametrize(
    ("headers", "left"),
    [(JSON, 5000 - 4 - 100), (NDJSON, 5000 - 4 - 25), ((("content-type", "image/png"),), 5000 - 4)],
)
async def test_what_no_engine_counts_is_estimated_by_what_came(headers: Headers, left: int) -> None:
    stage = named(Stage(Rates(tpm=5000)))
    answer(stage, headers, pieces=25, size_bytes=400)
    call = await stage.surface.post(GENERATE, b'{"prompt":"hello"}', JSON_TYPE)
    assert (call.status, stage.left()[1]) == (200, left)


async def test_what_is_only_fetched_takes_no_tokens_unless_it_streams() -> None:
    stage = named(Stage(Rates(tpm=5000)))
    answer(stage, JSON, size_bytes=40_000)
    assert (await stage.surface.get("/engines/m/metrics")).status == 200
    assert stage.left()[1] == 5000
    answer(stage, (("content-type", "text/event-stream"),), pieces=30)
    assert (await stage.surface.get("/engines/m/generate?prompt=x")).status == 200
    assert stage.left()[1] == 4970


@pytest.mark.parametrize(
    ("rates", "tenant", "allowed"),
    [
        (Rates(tpm=5000), None, False),
        (Rates(rpm=50), None, True),
        (None, TenantLimits(rates=Rates(tpm=5000)), False),
        (None, TenantLimits(budgets=Budgets(tokens_per_day=5000)), False),
        (None, TenantLimits(budgets=Budgets(money_per_month=5.0)), False),
        (None, TenantLimits(budgets=Budgets(gpu_seconds_per_day=5.0)), True),
        (None, None, True),
    ],
)
async def test_a_key_held_to_tokens_uses_engines_own_paths_only_if_its_routes_name_them(
    rates: Rates | None, tenant: TenantLimits | None, allowed: bool
) -> None:
    stage = Stage(rates, tenant)
    answer(stage, JSON, usage=Usage(1, 1))
    call = await stage.surface.post(GENERATE, b'{"prompt":"x","n_predict":5}', JSON_TYPE)
    assert call.status == (200 if allowed else 403)
    if not allowed:
        error = orjson.loads(call.content)["error"]
        assert error["code"] == "route_not_allowed"
        assert "--routes any" in error["message"]
        named(stage)
        call = await stage.surface.post(GENERATE, b'{"prompt":"x","n_predict":5}', JSON_TYPE)
        assert call.status == 200


async def test_a_guess_takes_at_most_half_of_what_is_left_of_a_budget() -> None:
    stage = Stage(tenant=TenantLimits(budgets=Budgets(tokens_per_day=1000, money_per_day=1.0)))
    stage.source.set(
        TenantLimits(budgets=Budgets(tokens_per_day=1000, money_per_day=1.0)), m=Price(1.0, 1e5, 0)
    )
    stage.limits.refresh()
    stage.limits.bounds = lambda request: (10, request.most_tokens or 100_000)
    guard = stage.limits.guard(stage.keys.principal)
    assert guard is not None
    held = []
    for _ in range(5):
        request = _request(stage)
        held.append(guard.reserve(request))
    tokens = [each._reservation.need.tokens for each in held]
    assert tokens == [500, 250, 125, 62, 31]
    assert sum(each._reservation.need.money for each in held) < 1.0


def _request(stage: Stage) -> Request:
    return Request(
        id="r",
        principal=stage.keys.principal,
        method="POST",
        path="/v1/chat/completions",
        headers=(),
        model="m",
        route="chat",
        streaming=True,
        body=RequestBody(b"{}"),
        arrived_s=0.0,
        need="chat",
        output_tokens=256,
    )


async def test_a_body_that_is_passed_on_unread_on_a_built_in_route_counts() -> None:
    stage = Stage(Rates(tpm=5000))
    answer(stage, JSON, usage=Usage(1, 1))
    headers = ((b"content-type", b"text/plain"), (b"x-model", b"m"))
    body = b'{"messages":[],"max_tokens":24000}'
    call = await stage.surface.post("/v1/chat/completions", body, *headers)
    assert (call.status, stage.dispatcher.requests) == (429, [])
