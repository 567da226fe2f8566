"""Requests of other dialects at an engine that has chat completions only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from agent.engines.backend import BackendBody, BackendFailed, ResponseReceiver
from agent.engines.dialects.call import TranslatedCall
from agent.engines.dialects.table import DIALECTS
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.settings import EngineSettings
from shared.process.server_sent_events import each_event
from shared.protocol.messages import RequestHead
from tests.agent.engines.dialects.streams import CHUNKS, stream
from tests.agent.support.canned import Response, added, asked, once, read, until
from tests.support.scripted_engine import Fault, Habit, Script, ScriptedEngine, tokens_of

MESSAGES: dict[str, Any] = {
    "model": "scripted",
    "max_tokens": 3,
    "messages": [{"role": "user", "content": "hi"}],
}
RESPONSES: dict[str, Any] = {"model": "scripted", "input": "hi", "max_output_tokens": 3}
CHAT = {"chat": "prefill"}
TEXT = "".join(tokens_of("hi", 3))


@asynccontextmanager
async def chat_only(
    script: Script | None = None,
) -> AsyncIterator[tuple[ScriptedEngine, OpenAIHTTPBackend]]:
    async with ScriptedEngine(habits=[Habit.CHAT_ONLY], default=script) as engine:
        made = OpenAIHTTPBackend(EngineSettings(url=engine.url, name="e", refresh_s=3600, continues=CHAT))
        await made.start()
        try:
            yield engine, made
        finally:
            await made.close()


def head(path: str, body: bytes) -> RequestHead:
    fields = (("content-type", "application/json"), ("content-length", str(len(body))))
    return RequestHead("e/scripted", "POST", path, fields, "scripted", "r")


async def ask(made: OpenAIHTTPBackend, path: str, request: object) -> tuple[int, bytes]:
    body = orjson.dumps(request)
    async with asked(made, head(path, body), once(body)) as response:
        return response.status, await read(response)


async def test_messages_are_answered_and_the_engine_is_asked_in_vain_only_once(no_leaks: None) -> None:
    async with chat_only() as (engine, made):
        for _ in range(2):
            status, body = await ask(made, "/v1/messages?beta=true", MESSAGES)
            assert (status, orjson.loads(body)["content"]) == (200, [{"type": "text", "text": TEXT}])
        asks = [line for line in engine.stats.requests if line.startswith("POST")]
        assert asks == ["POST /v1/messages?beta=true", *["POST /v1/chat/completions"] * 2]


async def test_responses_are_streamed(no_leaks: None) -> None:
    async with chat_only() as (_, made):
        status, body = await ask(made, "/v1/responses", RESPONSES | {"stream": True})
        values = [event.value() or {} for event in each_event(body)]
        deltas = [value["delta"] for value in values if value["type"] == "response.output_text.delta"]
        assert (status, "".join(deltas)) == (200, TEXT)
        assert values[-1]["response"]["usage"]["output_tokens"] == 3


async def test_an_engine_that_speaks_the_dialect_is_asked_in_it(no_leaks: None) -> None:
    async with ScriptedEngine() as engine:
        made = OpenAIHTTPBackend(EngineSettings(url=engine.url, name="e", refresh_s=3600))
        await made.start()
        for _ in range(2):
            assert (await ask(made, "/v1/messages", MESSAGES))[0] == 200
        await made.close()
        assert [line for line in engine.stats.requests if "POST" in line] == ["POST /v1/messages"] * 2


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_what_cannot_be_translated_is_a_400_in_the_dialects_shape(path: str, no_leaks: None) -> None:
    async with chat_only() as (engine, made):
        more = {"previous_response_id": "x", "mcp_servers": [{"url": "x"}]}
        status, body = await ask(made, path, MESSAGES | RESPONSES | more)
        said = orjson.loads(body)
        assert (status, said["error"]["type"]) == (400, "invalid_request_error")
        assert ("type" in said) == (path == "/v1/messages")
        assert "POST /v1/chat/completions" not in engine.stats.requests


async def test_what_no_answer_could_repeat_is_refused_before_the_engine_works(no_leaks: None) -> None:
    request = b'{"model":"scripted","input":"hi","metadata":%b}' % (b"[" * 300 + b"]" * 300)
    async with chat_only() as (engine, made):
        await ask(made, "/v1/responses", RESPONSES)
        asks = len(engine.stats.requests)
        async with asked(made, head("/v1/responses", request), once(request)) as response:
            status, body = response.status, await read(response)
        assert (status, orjson.loads(body)["error"]["code"]) == (400, "not_translatable")
        assert len(engine.stats.requests) == asks


async def test_an_engines_error_gets_the_dialects_shape(no_leaks: None) -> None:
    async with chat_only() as (engine, made):
        await ask(made, "/v1/messages", MESSAGES)
        engine.default = Script(status=429)
        status, body = await ask(made, "/v1/messages", MESSAGES)
        said = orjson.loads(body)
        assert (status, said["type"], said["error"]["type"]) == (429, "error", "rate_limit_error")


async def test_a_stream_that_breaks_off_is_a_failure_without_an_end(no_leaks: None) -> None:
    async with chat_only() as (engine, made):
        await ask(made, "/v1/messages", MESSAGES)
        engine.default = Script(fault=Fault.CLOSE, after=2)
        body = orjson.dumps(MESSAGES | {"stream": True})
        got = bytearray()
        async with asked(made, head("/v1/messages", body), once(body)) as response:
            with pytest.raises(BackendFailed):
                await response.stream_to(lambda piece: added(got, piece))
        assert b"content_block_delta" in got
        assert b"message_stop" not in got


async def test_the_end_of_a_stream_waits_while_no_more_of_it_is_wanted() -> None:
    def send(head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> Any:
        sent.append(receiver)

    sent: list[ResponseReceiver] = []
    body, response = orjson.dumps(MESSAGES | {"stream": True}), Response()
    call = TranslatedCall(DIALECTS["/v1/messages"], head("/v1/messages", body), once(body), response, send)
    await until(lambda: sent)
    sent[0].on_response(200, (("content-type", "text/event-stream"),))
    assert not sent[0].on_body(stream(CHUNKS).removesuffix(b"data: [DONE]\n\n"))
    sent[0].on_over(None)
    assert (len(response._pieces), response._over) == (1, False)
    call.resume()
    assert b"message_stop" in response._pieces[1]
    assert (len(response._pieces), response._over, response._error) == (2, True, None)


async def test_a_request_let_go_of_frees_the_engine(no_leaks: None) -> None:
    async with chat_only() as (engine, made):
        await ask(made, "/v1/messages", MESSAGES)
        engine.default = Script(stepped=True)
        body = orjson.dumps(MESSAGES | {"stream": True})
        async with asked(made, head("/v1/messages", body), once(body)):
            assert engine.stats.running == 1
        await until(lambda: engine.stats.cancelled == 1)


async def test_what_is_translated_goes_on_elsewhere_as_the_engines_chat_does(no_leaks: None) -> None:
    async with chat_only() as (_, made):
        assert made.deployments()[0].continues == CHAT
        await ask(made, "/v1/messages", MESSAGES)
        await until(lambda: made.deployments()[0].continues == {"chat": "prefill", "messages": "prefill"})
        assert made.deployments()[0].translated == ("messages", "messages/v1/messages/count_tokens")


@pytest.mark.parametrize("known", [True, False])
async def test_tokens_are_counted_by_a_chat_of_one_token(known: bool, no_leaks: None) -> None:
    count = {name: value for name, value in MESSAGES.items() if name != "max_tokens"}
    async with chat_only() as (engine, made):
        if known:
            await ask(made, "/v1/messages", MESSAGES)
            await until(lambda: "messages" in made.deployments()[0].translated)
        status, body = await ask(made, "/v1/messages/count_tokens", count)
        plain = await ask(made, "/v1/chat/completions", count | {"max_tokens": 1})
        tokens = orjson.loads(plain[1])["usage"]["prompt_tokens"]
        assert (status, orjson.loads(body)) == (200, {"input_tokens": tokens})
        assert ("POST /v1/messages/count_tokens" in engine.stats.requests) is not known


async def test_completions_are_not_translated(no_leaks: None) -> None:
    """A chat template would change the prompt, so that the answer would be one to another prompt."""
    async with chat_only() as (engine, made):
        status, _ = await ask(made, "/v1/completions", {"model": "scripted", "prompt": "hi"})
        assert status == 404
        assert "POST /v1/chat/completions" not in engine.stats.requests
