"""What is recorded of a finished request, in the log, the metrics and the audit log."""

import json
from typing import Any

import orjson
from structlog.testing import capture_logs

from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.request_log import RequestAudit, RequestLog
from gateway.domain.errors import QueueFull, RequestError
from gateway.domain.quotas import Price
from gateway.domain.request import Request
from gateway.observability.audit import RequestFacts, facts_of
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Trailers, Usage
from tests.gateway.api.support import (
    BEARER,
    CHAT,
    EVENTS,
    JSON_TYPE,
    CountedRequests,
    FakeResponse,
    Surface,
    json_response,
)
from tests.gateway.fleet.fleet import Fleet, deployment

ASK = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"swordfish"}]}'


def lines_of(surface: Surface, counter: CountedRequests | None = None) -> list[dict[str, Any]]:
    with capture_logs() as lines:
        log = RequestLog(counter or CountedRequests())
        for exchange, status, failure in surface.finished:
            log(exchange, status, failure)
    return [dict(line) for line in lines]


async def test_a_line_says_who_what_where_how_long_and_how_much(surface: Surface) -> None:
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, chunks=(b"data: 1\n\n",)))
    response.trailers = Trailers(Usage(5, 7))
    await surface.post(CHAT, ASK, JSON_TYPE, (b"x-request-id", b"r1"))
    counter = CountedRequests()
    [line] = lines_of(surface, counter)
    assert line.pop("total_ms") >= line.pop("first_byte_ms") >= 0
    assert line == {
        "event": "request",
        "log_level": "info",
        "id": "r1",
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "key": "tests",
        "model": "m",
        "route": "chat",
        "tier": "standard",
        "stream": True,
        "agent": "gpu-1",
        "attempts": 1,
        "queue_ms": 12.5,
        "tokens_in": 5,
        "tokens_out": 7,
        "bytes_in": len(ASK),
        "bytes_out": 9,
    }
    assert counter.finished == [("chat", "m", 200)]


async def test_a_stream_counts_its_first_token_and_the_time_between_tokens(surface: Surface) -> None:
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, chunks=(b"data: 1\n\n",)))
    response.trailers = Trailers(Usage(5, 7))
    await surface.post(CHAT, ASK, JSON_TYPE)
    counter = CountedRequests()
    lines_of(surface, counter)
    [(model, first_token_s, lasted_s, tokens)] = counter.streams
    assert (model, tokens) == ("m", 7)
    assert first_token_s >= 0
    assert lasted_s >= 0
    assert counter.agents == [("gpu-1", 200)]


async def test_answers_in_one_piece_and_refusals_count_no_tokens_times(surface: Surface) -> None:
    surface.dispatcher.answer(FakeResponse(chunks=(b"{}",)))
    await surface.post(CHAT, b'{"model":"m","messages":[]}', JSON_TYPE)
    surface.dispatcher.fail(QueueFull("full"))
    await surface.post(CHAT, ASK, JSON_TYPE)
    counter = CountedRequests()
    lines_of(surface, counter)
    assert counter.streams == []
    assert counter.agents == [("gpu-1", 200)]


async def test_a_refusal_names_its_code(surface: Surface) -> None:
    surface.dispatcher.fail(QueueFull("full"))
    await surface.post(CHAT, ASK)
    [line] = lines_of(surface)
    assert (line["status"], line["error"]) == (429, "queue_full")


async def test_no_content_no_key_and_no_query_is_ever_logged(surface: Surface) -> None:
    for path in (CHAT, "/engines/m/x", "/v1/nowhere"):
        call = surface.ask("POST", path, (b"authorization", b"Bearer sk-tl-test"), query=b"token=swordfish")
        call.body(ASK)
        await call.done()
    await surface.post(CHAT, b'{"model": swordfish}')
    written = json.dumps(lines_of(surface))
    assert "swordfish" not in written
    assert "sk-tl-test" not in written


async def test_an_engines_words_are_for_the_client_only() -> None:
    surface = Surface(HttpSettings(comment_interval_s=0.01))
    held = surface.dispatcher.hold()
    call = surface.ask("POST", CHAT, BEARER, JSON_TYPE)
    call.body(ASK)
    await call.until(lambda call: call.sent)
    said = b'{"error":{"message":"cannot read \'swordfish\'","code":"swordfish is no code"}}'
    held.set_result(FakeResponse(500, chunks=(said,)))
    await call.done()
    assert b"swordfish" in call.content
    [line] = lines_of(surface)
    assert line["error"] == "engine_refused"
    assert "swordfish" not in json.dumps(line)


async def test_a_path_cannot_write_to_the_terminal(surface: Surface) -> None:
    call = surface.ask("GET", "/%1b%5b2J%0aforged", decoded="/\x1b[2J\nforged")
    await call.done()
    [line] = lines_of(surface)
    assert line["path"] == "/%1b%5b2J%0aforged"


async def test_probes_are_counted_but_not_logged(surface: Surface) -> None:
    await surface.get("/healthz")
    await surface.get("/metrics")
    counter = CountedRequests()
    assert lines_of(surface, counter) == []
    assert [route for route, _, _ in counter.finished] == ["health", "metrics"]


async def test_lists_of_models_that_go_well_are_told_below_info(surface: Surface) -> None:
    await surface.get("/v1/models")
    await surface.get("/v1/models/nothing")
    counter = CountedRequests()
    lines = lines_of(surface, counter)
    assert [(line["status"], line["log_level"]) for line in lines] == [(200, "debug"), (404, "info")]
    assert [(route, status) for route, _, status in counter.finished] == [("models", 200), ("models", 404)]


async def test_lines_can_be_left_out(surface: Surface) -> None:
    await surface.post(CHAT, ASK)
    counter = CountedRequests()
    with capture_logs() as lines:
        log = RequestLog(counter, lines=False)
        exchange, status, failure = surface.finished[0]
        assert failure is None or isinstance(failure, RequestError)
        log(exchange, status, failure)
    assert lines == []
    assert counter.finished


def recorded(surface: Surface) -> list[dict[str, Any]]:
    facts: list[RequestFacts] = []
    audit = RequestAudit(facts.append, lambda model: Price(1.0, 2.0, 0.5), lambda: 0.0)
    for exchange, status, failure in surface.finished:
        reply, who = exchange.reply, exchange.principal
        first_s = None if reply.first_byte_s is None else reply.first_byte_s - exchange.began_s
        if who is not None:
            audit.record(exchange, who, status, failure, 1.5, first_s, reply.bytes_out())
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
