"""The HTTP surface over a real, tiny model in this process."""

import asyncio
import base64
import struct
from typing import Any

import httpx
import orjson
import pytest
import torch

from agent.engines.torch.engine import TorchEngine
from agent.engines.torch.http import EngineHTTP
from tests.agent.engines.torch.spoil import POISON, spoil

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
TEXT = {"model": "tiny", "prompt": "hello", "max_tokens": 8}


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.split("\n\n") if line]
    return [line if "[DONE]" in line else orjson.loads(line.removeprefix("data: ")) for line in lines]


def said(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["text"])


async def test_a_chat_is_the_same_streamed_and_whole(client: httpx.AsyncClient) -> None:
    whole = await client.post("/v1/chat/completions", json=HELLO)
    assert whole.status_code == 200
    choice = whole.json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert whole.json()["usage"] == {"prompt_tokens": 23, "completion_tokens": 8, "total_tokens": 31}
    streamed = await client.post("/v1/chat/completions", json=HELLO | {"stream": True})
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert streamed.headers["x-accel-buffering"] == "no"
    *chunks, done = events(streamed)
    assert done == "data: [DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == choice["message"]["content"]
    assert len(chunks) == 1 + 8 + 1


async def test_a_stream_ends_with_usage_when_asked(client: httpx.AsyncClient) -> None:
    body = TEXT | {"stream": True, "stream_options": {"include_usage": True}}
    usage = events(await client.post("/v1/completions", json=body))[-2]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}


async def test_a_stop_string_ends_the_text_before_it(client: httpx.AsyncClient) -> None:
    text = said(await client.post("/v1/completions", json=TEXT))
    stopped = await client.post("/v1/completions", json=TEXT | {"stop": text[3:5]})
    assert said(stopped) == text[: text.index(text[3:5])]
    assert stopped.json()["choices"][0]["finish_reason"] == "stop"


async def test_a_prompt_of_tokens_is_the_prompt_of_their_text(
    client: httpx.AsyncClient, engine: TorchEngine
) -> None:
    ids = engine.model.tokenizer("hello").input_ids
    expected = said(await client.post("/v1/completions", json=TEXT))
    assert said(await client.post("/v1/completions", json=TEXT | {"prompt": ids})) == expected


async def test_a_begun_answer_is_continued_exactly(client: httpx.AsyncClient) -> None:
    whole = await client.post("/v1/chat/completions", json=HELLO)
    text = whole.json()["choices"][0]["message"]["content"]
    begun = [*HELLO["messages"], {"role": "assistant", "content": text[:3]}]  # type: ignore[misc]
    body = HELLO | {"messages": begun, "continue_final_message": True, "max_tokens": 5}
    rest = await client.post("/v1/chat/completions", json=body)
    assert rest.json()["choices"][0]["message"]["content"] == text[3:]
    assert rest.json()["usage"] == {
        "prompt_tokens": 26,
        "completion_tokens": 5,
        "total_tokens": 31,
        "prompt_tokens_details": {"continued_tokens": 3},
    }


@pytest.mark.parametrize(
    ("begun", "most", "said_chars", "reason"), [(3, 8, 5, "length"), (8, 8, 0, "length")]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_limit_of_a_begun_answer_may_be_that_of_the_whole(
    client: httpx.AsyncClient, begun: int, most: int, said_chars: int, reason: str, stream: bool
) -> None:
    whole = await client.post("/v1/chat/completions", json=HELLO)
    text = whole.json()["choices"][0]["message"]["content"]
    messages = [*HELLO["messages"], {"role": "assistant", "content": text[:begun]}]  # type: ignore[misc]
    body = HELLO | {"messages": messages, "continue_final_message": True, "continued_max_tokens": most}
    rest = await client.post("/v1/chat/completions", json=body | {"max_tokens": 1, "stream": stream})
    if not stream:
        choice = rest.json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text[begun:], reason)
        return
    chunks = [event["choices"][0] for event in events(rest)[:-1]]
    said = "".join(chunk["delta"].get("content", "") for chunk in chunks)
    assert (said, chunks[-1]["finish_reason"]) == (text[begun:], reason)
    assert len(said) == said_chars


async def test_a_begun_answer_ends_at_the_context_as_it_would_have_undisturbed(
    client: httpx.AsyncClient,
) -> None:
    messages = [*HELLO["messages"], {"role": "assistant", "content": "a" * 488}]  # type: ignore[misc]
    body = HELLO | {"messages": messages, "continue_final_message": True, "max_tokens": 50}
    full = await client.post("/v1/chat/completions", json=body)
    assert full.json()["usage"]["total_tokens"] == 512
    assert full.json()["choices"][0]["finish_reason"] == "length"


async def test_the_same_seed_gives_the_same_text(client: httpx.AsyncClient) -> None:
    body = TEXT | {"temperature": 1.5, "seed": 5}
    first = said(await client.post("/v1/completions", json=body))
    assert said(await client.post("/v1/completions", json=body)) == first
    assert said(await client.post("/v1/completions", json=body | {"seed": 6})) != first


async def test_embeddings_are_normalised_and_counted(client: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "input": ["hello", "a"]}
    found = (await client.post("/v1/embeddings", json=body)).json()
    assert found["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    vectors = [item["embedding"] for item in found["data"]]
    assert [sum(x * x for x in vector) for vector in vectors] == pytest.approx([1.0, 1.0])
    packed = (await client.post("/v1/embeddings", json=body | {"encoding_format": "base64"})).json()["data"]
    assert list(struct.unpack("<32f", base64.b64decode(packed[0]["embedding"]))) == pytest.approx(vectors[0])


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("/v1/chat/completions", HELLO | {"model": "other"}, 404, "model_not_found", None),
        ("/v1/chat/completions", HELLO | {"best_of": 2}, 400, "unsupported_parameter", "best_of"),
        ("/v1/chat/completions", HELLO | {"max_tokens": 600}, 400, "context_length_exceeded", "messages"),
        ("/v1/completions", TEXT | {"prompt": "x" * 600}, 400, "context_length_exceeded", "prompt"),
        ("/v1/completions", TEXT | {"prompt": [9999]}, 400, "invalid_value", "prompt"),
        ("/v1/completions", TEXT | {"prompt": ""}, 400, "invalid_value", "prompt"),
        ("/v1/embeddings", {"input": ["a", "x" * 600]}, 400, "context_length_exceeded", "input"),
        ("/v1/nothing", {}, 404, "unknown_url", None),
        ("/v1/models", {}, 405, "method_not_allowed", None),
    ],
)
async def test_errors_name_what_is_wrong(
    client: httpx.AsyncClient, path: str, body: Any, status: int, code: str, param: str | None
) -> None:
    response = await client.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize("data", [b"", b"{", b"[1]"])
async def test_what_is_no_json_object_is_refused(client: httpx.AsyncClient, data: bytes) -> None:
    response = await client.post("/v1/chat/completions", content=data)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


async def test_a_body_too_large_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", content=b" " * (16 * 1024 * 1024 + 1))
    assert response.status_code == 413


async def test_a_template_that_refuses_is_the_requests_error(
    client: httpx.AsyncClient, engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        engine.model.tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}"
    )
    response = await client.post("/v1/chat/completions", json=HELLO)
    assert response.status_code == 400
    assert "roles must alternate" in response.json()["error"]["message"]
    monkeypatch.setattr(engine.model.tokenizer, "chat_template", None)
    response = await client.post("/v1/chat/completions", json=HELLO)
    assert response.status_code == 404
    assert "no chat template" in response.json()["error"]["message"]


async def test_a_full_engine_refuses_with_a_time_to_come_back(
    client: httpx.AsyncClient, engine: TorchEngine
) -> None:
    places = [engine.admission.enter() for _ in range(3)]
    response = await client.post("/v1/completions", json=TEXT)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert int(response.headers["retry-after-ms"]) >= 1
    assert response.json()["error"]["code"] == "queue_full"
    for place in places:
        place.close()
    assert (await client.post("/v1/completions", json=TEXT)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_memory_that_runs_out_is_an_error_of_that_request(
    client: httpx.AsyncClient, engine: TorchEngine, stream: bool
) -> None:
    with spoil(engine.model.network, lambda: torch.OutOfMemoryError("CUDA out of memory")):
        response = await client.post("/v1/completions", json=TEXT | {"prompt": [POISON, 5], "stream": stream})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "out_of_memory"
    assert (await client.post("/v1/completions", json=TEXT | {"stream": stream})).status_code == 200


async def test_a_stream_that_breaks_is_cut_off_after_what_was_said(
    client: httpx.AsyncClient, engine: TorchEngine
) -> None:
    first = said(await client.post("/v1/completions", json=TEXT | {"max_tokens": 1}))
    poison = engine.model.tokenizer(first).input_ids[0]
    sent: list[Any] = []
    body = orjson.dumps(TEXT | {"stream": True})
    asked = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return asked.pop() if asked else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [],
        "query_string": b"",
    }
    with spoil(engine.model.network, MemoryError, when=poison):
        await EngineHTTP(engine, None).app()(scope, receive, send)
    head, *bodies = sent
    assert head["status"] == 200
    assert orjson.loads(bodies[0]["body"].removeprefix(b"data: "))["choices"][0]["text"] == first
    assert all(body["more_body"] for body in bodies)  # the server under it closes the connection for that


async def test_health_says_failed_once_nothing_can_be_computed(
    client: httpx.AsyncClient, engine: TorchEngine
) -> None:
    assert (await client.get("/health")).json()["status"] == "READY"
    engine.failure = "computing ended: broken"
    try:
        response = await client.get("/health")
    finally:
        engine.failure = None
    assert response.status_code == 503
    assert response.json() == {"status": "FAILED", "reason": "computing ended: broken"}


async def test_a_key_is_asked_for_where_there_is_one(engine: TorchEngine) -> None:
    transport = httpx.ASGITransport(EngineHTTP(engine, "k3y").app())
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.post("/v1/completions", json=TEXT)).json()["error"]["code"] == "invalid_api_key"
        right = {"authorization": "Bearer k3y"}
        assert (await client.get("/v1/models", headers=right)).status_code == 200
        tiny = (await client.get("/v1/models/tiny", headers=right)).json()
        assert (tiny["id"], tiny["max_model_len"]) == ("tiny", engine.facts.context_tokens)
        assert {"completion", "embedding"} <= set(tiny["capabilities"])
        assert (await client.get("/v1/models/other", headers=right)).status_code == 404
