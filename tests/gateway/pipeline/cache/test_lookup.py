"""Answers that serve more than one request: kept, and never another tenant's."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import BadRequest, StreamBroken
from gateway.domain.request import Request, RequestBody
from gateway.domain.surface import EngineTarget
from gateway.pipeline.cache import CacheRule
from gateway.pipeline.client_body import BodyKind, ClientBody
from gateway.pipeline.client_head import ClientHead
from shared.protocol.errors import ErrorCode
from tests.gateway.pipeline.cache.asking import (
    EMBEDDINGS,
    EVENTS,
    Site,
    chat,
    read,
    request,
)

STREAM = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: [DONE]\n\n'


# --- Kept ---


async def test_an_answer_is_kept_and_told_again_with_its_age() -> None:
    site = Site()
    assert await site.ask() == ("miss", site.engine.body)
    site.now_s += 7.9
    lookup = site.lookup()
    response = await lookup.run(request(), site.engine.run)
    assert lookup.headers() == [(b"x-trunkline-cache", b"hit"), (b"age", b"7")]
    length = str(len(site.engine.body))
    assert response.headers == (("content-type", "application/json"), ("content-length", length))
    assert (response.status, response.agent, response.attempts, response.trailers) == (200, "gpu-7", 0, None)
    assert await read(response) == site.engine.body
    assert len(site.engine.asked) == 1
    assert (site.counted("miss"), site.counted("hit")) == (1, 1)
    site.assert_quiet()


async def test_who_leads_gets_all_that_its_engine_says() -> None:
    site = Site()
    lookup = site.lookup()
    response = await lookup.run(request(), site.engine.run)
    assert lookup.headers() == [(b"x-trunkline-cache", b"miss")]
    assert response.headers == site.engine.headers
    assert await read(response) == site.engine.body
    assert response.trailers is not None
    assert response.trailers.usage is not None
    assert site.engine.answers[0].credit_bytes == len(site.engine.body), "each byte is credited once"


async def test_an_answer_is_not_told_after_its_time_or_once_its_version_is_gone() -> None:
    site = Site(CacheRule(cache_s=10.0))
    await site.ask()
    site.versions = {"v2"}
    site.engine.version = "v2"
    site.engine.body = b'{"data":[2]}'
    assert await site.ask() == ("miss", b'{"data":[2]}')
    assert (await site.ask())[0] == "hit"
    site.now_s += 10.0
    assert (await site.ask())[0] == "miss"


@pytest.mark.parametrize(
    ("asked", "streaming"),
    [(chat(temperature=0.7), False), (chat(n=2), False), (chat(stream=True, temperature=1), True)],
)
async def test_what_may_be_answered_in_two_ways_is_computed_each_time(
    asked: Request, streaming: bool
) -> None:
    site = Site()
    site.engine.headers = EVENTS if streaming else site.engine.headers
    for _ in range(2):
        assert (await site.ask(asked))[0] == "bypass"
    assert len(site.engine.asked) == 2


async def test_a_shorter_time_and_no_rule_at_all_count_for_what_is_kept_already() -> None:
    site = Site(CacheRule(cache_s=60.0))
    await site.ask()
    site.now_s += 10.0
    site.stage.retune({"m": CacheRule(cache_s=10.0)}, by_header=False)
    assert (await site.ask())[0] == "miss"
    site.stage.retune({"n": CacheRule(cache_s=10.0)}, by_header=False)
    assert (await site.ask())[0] == ""


@pytest.mark.parametrize("status", [201, 206, 400, 429, 500])
async def test_only_answers_with_status_200_are_kept(status: int) -> None:
    site = Site()
    site.engine.status = status
    assert (await site.ask())[0] == (await site.ask())[0] == "miss"
    assert len(site.engine.asked) == 2
    site.assert_quiet()


@pytest.mark.parametrize(
    "body", [b'{"error":{"message":"no"}}', b'{"object":"error"}', b"", b'{"finish_reason":"abort"}']
)
async def test_what_says_that_it_failed_is_not_kept(body: bytes) -> None:
    site = Site()
    site.engine.body = body
    assert await site.ask() == await site.ask() == ("miss", body)


async def test_an_answer_that_says_no_error_is_kept() -> None:
    site = Site()
    site.engine.body = b'{"error":null,"output":"an \\"error\\": none"}'
    await site.ask()
    assert (await site.ask())[0] == "hit"


async def test_an_engine_can_ask_that_nothing_is_kept() -> None:
    site = Site()
    site.engine.headers = (*site.engine.headers, ("cache-control", "private, No-Store"))
    await site.ask()
    assert (await site.ask())[0] == "miss"


async def test_a_model_without_a_rule_is_none_of_its_concern() -> None:
    site = Site()
    lookup = site.lookup()
    await read(await lookup.run(request(model="other"), site.engine.run))
    assert lookup.headers() == []
    assert len(site.cache) == 0


async def test_clients_can_ask_for_a_fresh_answer() -> None:
    site = Site()
    await site.ask()
    site.engine.body = b'{"data":[2]}'
    assert await site.ask(wish=b"no") == ("bypass", b'{"data":[2]}')
    assert await site.ask() == ("hit", b'{"data":[1]}')
    assert await site.ask(wish=b"Refresh") == ("miss", b'{"data":[2]}')
    assert await site.ask() == ("hit", b'{"data":[2]}')


async def test_clients_can_ask_for_reuse_only_where_the_operator_lets_them() -> None:
    site = Site(models={}, by_header=False)
    assert not site.stage.on
    site.stage.retune({}, by_header=True)
    assert site.stage.on
    assert [(await site.ask(wish=b"allow"))[0] for _ in range(2)] == ["miss", "hit"]
    assert (await site.ask())[0] == ""
    site.stage.retune({"m": CacheRule(0.0, coalesce=False)}, by_header=False)
    assert not site.stage.on


def test_a_wish_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(BadRequest, match="one of allow, refresh, no") as caught:
        Site().lookup(b"maybe")
    assert caught.value.code == "invalid_cache"


def test_a_body_that_is_not_read_whole_as_json_is_not_reused() -> None:
    head = ClientHead("r", "POST", EMBEDDINGS, EngineTarget("/"), [], {}, 0.0)
    assert Site().stage.lookup(head, ClientBody(BodyKind.FORM, RequestBody(b""))) is None


# --- Streams ---


def streaming(site: Site) -> Request:
    site.engine.headers, site.engine.body = EVENTS, STREAM
    return chat(stream=True)


async def test_a_stream_is_told_again_as_it_was_written() -> None:
    site = Site()
    asked = streaming(site)
    assert await site.ask(asked) == ("miss", STREAM)
    assert await site.ask(asked) == ("hit", STREAM)
    assert (await site.ask(chat()))[0] == "miss", "another answer, and not of events"
    site.assert_quiet()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda site: setattr(site.engine, "body", STREAM.removesuffix(b"data: [DONE]\n\n")),
        lambda site: setattr(site.engine, "body", b'data: {"error": {"code": 500}}\n\n' + STREAM),
        lambda site: setattr(site.engine, "headers", (*site.engine.headers, ("cache-control", "no-store"))),
        lambda site: setattr(site.engine, "headers", (*site.engine.headers, ("content-encoding", "gzip"))),
    ],
)
async def test_a_stream_that_did_not_end_well_is_not_kept(spoil: Callable[[Site], None]) -> None:
    site = Site()
    asked = streaming(site)
    spoil(site)
    await site.ask(asked)
    assert (await site.ask(asked))[0] == "miss"


async def test_a_stream_that_was_cut_left_or_continued_elsewhere_is_not_kept() -> None:
    site = Site()
    asked = streaming(site)
    broken = await site.lookup().run(asked, site.engine.run)
    site.engine.answers[0].broken = StreamBroken(ErrorCode.SESSION_LOST, "gone")
    with pytest.raises(StreamBroken):
        await read(broken)
    left = await site.lookup().run(asked, site.engine.run)
    await left.next_chunks()
    left.abort()
    assert site.engine.answers[1].aborted
    continued = await site.lookup().run(asked, site.engine.run)
    site.engine.answers[2].continued = True
    assert await read(continued) == STREAM
    assert len(site.cache) == 0
    site.assert_quiet()


async def test_a_stream_that_is_too_long_passes_and_is_not_kept() -> None:
    site = Site(entry_bytes=1024)
    asked = streaming(site)
    site.engine.body = STREAM * 30
    assert await site.ask(asked) == ("miss", site.engine.body)
    assert await site.ask(asked) == ("miss", site.engine.body)
    assert len(site.cache) == 0
    site.assert_quiet()


# --- Tenants ---


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.booleans()), max_size=12))
def test_no_tenant_is_ever_told_what_was_computed_for_another(asks: list[tuple[str, str, bool]]) -> None:
    """Each engine's answer names the tenant it was computed for; some requests come at once."""

    async def all_of_them() -> None:
        site, waiting = Site(cache_bytes=1 << 20, entries=3), list[asyncio.Task[None]]()

        async def ask(tenant: str, text: str) -> None:
            asked = request({"model": "m", "input": text}, tenant=tenant)
            lookup = site.lookup()

            async def run(it: Request) -> object:
                await asyncio.sleep(0)
                site.engine.body = f'{{"for":"{tenant}","of":"{text}"}}'.encode()
                return await site.engine.run(it)

            got = await read(await lookup.run(asked, run))  # type: ignore[arg-type]
            assert got == f'{{"for":"{tenant}","of":"{text}"}}'.encode()

        for tenant, text, at_once in asks:
            task = asyncio.create_task(ask(tenant, text))
            waiting.append(task)
            if not at_once:
                await task
        await asyncio.gather(*waiting)
        assert len(site.cache) <= 3
        site.assert_quiet()

    asyncio.run(all_of_them())
