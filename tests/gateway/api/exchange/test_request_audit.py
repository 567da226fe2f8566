"""What of a finished request goes into the audit log."""

from typing import Any

import orjson
import pytest

from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.request_audit import RequestAudit
from gateway.domain.errors import QueueFull
from gateway.domain.quotas import Price
from gateway.domain.request import Request
from gateway.observability.audit import RequestFacts, facts_of
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Trailers, Usage
from tests.gateway.api.support import BEARER, EVENTS, JSON_TYPE, FakeResponse, Surface, json_response
from tests.gateway.fleet.fleet import Fleet, deployment

CHAT = "/v1/chat/completions"
ASK = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"swordfish"}]}'


@pytest.fixture
async def surface() -> Surface:
    return Surface()


def recorded(surface: Surface) -> list[dict[str, Any]]:
    facts: list[RequestFacts] = []
    audit = RequestAudit(facts.append, lambda model: Price(1.0, 2.0, 0.5), lambda: 0.0)
    for exchange, status, failure in surface.finished:
        audit(exchange, status, failure, 1.5)
    return [facts_of(each) for each in facts]


async def test_it_says_who_asked_what_where_it_ran_and_what_it_took(surface: Surface) -> None:
    async def serve(request: Request) -> FakeResponse:
        request.attempts += ["gpu-1/0", "gpu-2/0"]
        request.note_trouble("gpu-1/0", "stalled")
        request.gpu_s = 2.0
        response = FakeResponse(headers=EVENTS, chunks=(b"data: 1\n\n",))
        response.version, response.trailers = "v7", Trailers(Usage(5, 7))
        return response

    surface.dispatcher.serve = serve
    await surface.post(CHAT, ASK, JSON_TYPE, (b"x-request-id", b"r1"))
    [record] = recorded(surface)
    assert record.pop("first_byte_ms") >= 0
    assert record.pop("who").startswith("key:")
    assert record.pop("tenant")
    assert record == {
        "id": "r1",
        "status": 200,
        "route": "chat",
        "model": "m",
        "version": "v7",
        "tier": "standard",
        "queue_ms": 12.5,
        "total_ms": 1500.0,
        "gpu_s": 2.0,
        "cost": 1.000019,
        "ran": ["gpu-1/0", "gpu-2/0"],
        "why_not": ["stalled", ""],
        "tokens_in": 5,
        "tokens_out": 7,
    }


async def test_a_refusal_is_recorded_with_its_code_and_what_nobody_sent_is_not(surface: Surface) -> None:
    surface.dispatcher.fail(QueueFull("full"))
    await surface.post(CHAT, ASK, JSON_TYPE)
    await surface.post(CHAT, b"no json", JSON_TYPE)
    full, bad = recorded(surface)
    assert (full["status"], full["error"], full["model"], "ran" in full) == (429, "queue_full", "m", False)
    assert (bad["status"], "model" in bad) == (400, False)


async def test_strangers_probes_and_lists_of_models_are_not_recorded(surface: Surface) -> None:
    await surface.post(CHAT, ASK, JSON_TYPE, key=False)
    for path in ("/healthz", "/readyz", "/metrics", "/v1/models", "/openapi.json"):
        await surface.get(path)
    assert recorded(surface) == []


async def test_no_content_and_no_key_is_ever_recorded(surface: Surface) -> None:
    surface.dispatcher.answer(json_response(b'{"answer":"marlin"}'))
    for path in (CHAT, "/engines/m/x", "/v1/nowhere"):
        call = surface.ask("POST", path, (b"authorization", b"Bearer sk-tl-test"), query=b"token=swordfish")
        call.body(ASK)
        await call.done()
    await surface.post(CHAT, b'{"model": swordfish}', JSON_TYPE)
    written = orjson.dumps(recorded(surface)).decode()
    for secret in ("swordfish", "marlin", "sk-tl-test"):
        assert secret not in written


async def test_what_an_engine_calls_its_own_errors_is_not_recorded() -> None:
    surface = Surface(HttpSettings(comment_interval_s=0.001))
    engine = surface.dispatcher.hold()
    call = surface.ask("POST", CHAT, (b"content-length", b"%d" % len(ASK)), BEARER, JSON_TYPE)
    call.body(ASK)
    await call.until(lambda call: len(call.sent) > 1)
    engine.set_result(json_response(b'{"error":{"code":"swordfish","message":"marlin"}}', status=400))
    await call.done()
    assert b"swordfish" in call.content
    [record] = recorded(surface)
    assert (record["status"], record["error"]) == (400, "engine_refused")


def test_deployments_that_failed_a_request_are_kept_with_why() -> None:
    fleet = Fleet()
    agents = [fleet.connect(name, deployment()) for name in ("a", "b")]
    client = fleet.submit()
    first = next(agent for agent in agents if agent.streams)
    first.streams[-1].stream.reset(ErrorCode.ENGINE_UNREACHABLE)
    fleet.settle()
    assert len(client.request.attempts) == 2
    assert client.request.troubles == [(client.request.attempts[0], "unreachable")]
