"""A request's whole way: client, gateway, tunnel, agent, engine and back, each in its own process."""

import asyncio
import hashlib
import io
import json

import aiohttp

from tests.integration.conftest import MODEL, Site
from tests.support.processes import answer_to, fetch, until
from tests.support.scripted_engine import embedding_of


def chat(prompt: str, **more: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}]} | more


def client(site: Site) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(site.gateway.url, headers={"authorization": f"Bearer {site.key}"})


def texts(stream: bytes) -> list[str]:
    """The pieces of text in a chat's server-sent events."""
    events = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return [choice["delta"].get("content") or "" for choice in choices]


async def test_a_plain_chat_comes_back_with_its_facts_in_headers(site: Site) -> None:
    async with client(site) as session:
        response = await session.post("/v1/chat/completions", json=chat("hello", max_tokens=5))
        answer = await response.json()
    assert response.status == 200, answer
    assert answer["choices"][0]["message"]["content"] == answer_to("hello", 5)
    assert response.headers["x-trunkline-agent"] == "agent"
    assert response.headers["x-trunkline-attempts"] == "1"
    assert float(response.headers["x-trunkline-queue-ms"]) >= 0
    assert response.headers["x-request-id"]


async def test_a_request_id_from_the_client_comes_back_and_a_silly_one_is_replaced(site: Site) -> None:
    async with client(site) as session:
        for sent, kept in (("order-66", True), ("x" * 5000, False)):
            response = await session.get("/v1/models", headers={"x-request-id": sent})
            await response.read()
            assert (response.headers["x-request-id"] == sent) is kept


async def test_tokens_arrive_one_by_one_as_the_engine_gives_them(site: Site) -> None:
    body = chat("pace", stream=True, max_tokens=10, script={"stepped": True})
    received = b""
    async with client(site) as session:
        response = await session.post("/v1/chat/completions", json=body)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        for count in range(1, 11):
            async with asyncio.timeout(60):  # the next one is not needed for this one to come
                while "".join(texts(received)) != answer_to("pace", count):
                    received += await response.content.readuntil(b"\n\n")
            await asyncio.to_thread(fetch, f"{site.engine.url}/_step", body={})
        received += await response.read()
    assert received.endswith(b"data: [DONE]\n\n")


async def test_a_stream_passes_as_the_engine_wrote_it(site: Site) -> None:
    body = chat("bytes", stream=True, max_tokens=40)
    async with client(site) as session:
        through = await (await session.post("/v1/chat/completions", json=body)).read()
    async with aiohttp.ClientSession(site.engine.url) as session:
        direct = await (await session.post("/v1/chat/completions", json=body)).read()
    assert "".join(texts(through)) == "".join(texts(direct)) == answer_to("bytes", 40)
    assert through.endswith(b"data: [DONE]\n\n")
    assert through.count(b"data: ") == direct.count(b"data: ")


async def test_the_usage_chunk_reaches_only_the_client_that_asked_for_it(site: Site) -> None:
    async with client(site) as session:
        quiet = await session.post("/v1/chat/completions", json=chat("u", stream=True))
        asked = await session.post(
            "/v1/chat/completions", json=chat("u", stream=True, stream_options={"include_usage": True})
        )
        assert b'"usage"' not in await quiet.read()
        assert b'"usage"' in await asked.read()


async def test_embeddings_and_models_are_answered(site: Site) -> None:
    async with client(site) as session:
        models = await (await session.get("/v1/models")).json()
        response = await session.post("/v1/embeddings", json={"model": MODEL, "input": ["a", "b"]})
        vectors = await response.json()
        missing = await session.get("/v1/models/nothing-of-this-name")
        await missing.read()
    assert MODEL in [entry["id"] for entry in models["data"]]
    assert [entry["embedding"] for entry in vectors["data"]] == [embedding_of("a"), embedding_of("b")]
    assert missing.status == 404


async def test_an_upload_arrives_whole_through_a_multipart_form(site: Site) -> None:
    audio = bytes(range(256)) * 12_000
    form = aiohttp.FormData({"model": MODEL})
    form.add_field("file", io.BytesIO(audio), filename="a.wav", content_type="audio/wav")
    async with client(site) as session:
        response = await session.post("/v1/audio/transcriptions", data=form)
        seen = await response.json()
    assert response.status == 200, seen
    assert seen["sha256"] == hashlib.sha256(audio).hexdigest()


async def test_any_other_path_of_an_engine_is_reached_under_its_model(site: Site) -> None:
    async with client(site) as session:
        response = await session.put(f"/engines/{MODEL}/some/path?x=1", data=b"raw \x00 bytes")
        seen = await response.json()
    assert response.status == 200, seen
    assert (seen["method"], seen["path"]) == ("PUT", "/some/path?x=1")
    assert seen["bytes"] == 11
    assert site.key not in json.dumps(seen["headers"])


async def test_a_client_that_goes_away_frees_the_engine(site: Site) -> None:
    body = chat("gone", stream=True, max_tokens=1000, script={"tokens_per_s": 20})
    async with client(site) as session:
        response = await session.post("/v1/chat/completions", json=body)
        await response.content.readany()
        assert site.engine.stats()["running"] == 1
        response.close()
        await asyncio.to_thread(site.engine.until_idle)


async def test_a_client_that_goes_away_before_the_head_frees_the_engine_too(site: Site) -> None:
    async with client(site) as session:
        request = session.post("/v1/chat/completions", json=chat("never", script={"fault": "hang"}))
        task = asyncio.ensure_future(request)
        await asyncio.to_thread(until, "it runs", lambda: site.engine.stats()["running"] == 1)
        task.cancel()
        await asyncio.to_thread(site.engine.until_idle)


async def test_health_readiness_and_metrics_are_served(site: Site) -> None:
    async with client(site) as session:
        for path in ("/healthz", "/readyz"):
            health = await session.get(path)
            await health.read()
            assert health.status == 200
        text = await (await session.get("/metrics")).text()
    assert "# TYPE" in text
    assert site.key not in text
