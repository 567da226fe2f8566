"""What a job may ask for, and what is kept of its request."""

import pytest

from gateway.domain.errors import BadRequest, Forbidden, RequestError, RouteNotFound
from gateway.domain.request import Principal, Tier
from gateway.domain.scopes import limited
from gateway.jobs.service import JobRequest
from gateway.pipeline.bodies.reader import BodyReader
from gateway.pipeline.job_requests import JobRequestReader

PRINCIPAL = Principal("k", "key", "t")
CHAT = "/v1/chat/completions"
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'


async def read(
    path: str = CHAT,
    body: bytes = BODY,
    *,
    principal: Principal = PRINCIPAL,
    tier: Tier | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> JobRequest:
    return await JobRequestReader(lambda: 1.0)("job-1", principal, path, headers, body, tier)


async def test_a_request_is_understood_as_the_pipeline_does() -> None:
    asked = (await read()).request
    assert (asked.id, asked.model, asked.route, asked.path) == ("job-1", "m", "chat", CHAT)
    assert asked.prompt_bytes > 0


@pytest.mark.parametrize(
    ("path", "model", "engine_path"),
    [
        ("/v1/embeddings", "m", "/v1/embeddings"),
        ("/v1/messages", "m", "/v1/messages"),
        ("/engines/org%2Fm/render?size=1", "org/m", "/render?size=1"),
    ],
)
async def test_every_path_of_engines_will_do(path: str, model: str, engine_path: str) -> None:
    asked = await read(path)
    assert (asked.request.model, asked.request.path) == (model, engine_path)
    assert asked.path == path, "as on the surface"


@pytest.mark.parametrize(
    "path", ["", "v1/chat/completions", "/v1/chat/\ncompletions", "/v1/é", "/v1/chat/completions#x"]
)
async def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(BadRequest) as refused:
        await read(path)
    assert refused.value.param == "path"


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/files", "/v1/chat/completion", "/nothing", "/admin/keys"]
)
async def test_a_path_without_engines_is_refused(path: str) -> None:
    with pytest.raises(RouteNotFound) as refused:
        await read(path)
    assert refused.value.param == "path"


async def test_an_engines_path_that_could_be_another_is_refused() -> None:
    with pytest.raises(BadRequest):
        await read("/engines/m/../x")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"messages": []}', b'{"model": 5}', b'{"model": "a b"}']
)
async def test_a_body_must_be_an_object_that_names_its_model(body: bytes) -> None:
    with pytest.raises(BadRequest):
        await read(body=body)


@pytest.mark.parametrize(
    ("tier", "headers", "body", "found"),
    [
        (None, (), BODY, Tier.BATCH),
        (Tier.REALTIME, (), BODY, Tier.REALTIME),
        (None, (("x-trunkline-tier", "standard"),), BODY, Tier.STANDARD),
        (Tier.BATCH, (("x-trunkline-tier", "standard"),), BODY, Tier.BATCH),
        (None, (), b'{"model": "m", "service_tier": "priority"}', Tier.REALTIME),
        (None, (), b'{"model": "m", "service_tier": "auto"}', Tier.BATCH),
    ],
)
async def test_a_job_is_batch_unless_another_tier_is_asked_for(
    tier: Tier | None, headers: tuple[tuple[str, str], ...], body: bytes, found: Tier
) -> None:
    assert (await read(body=body, tier=tier, headers=headers)).request.tier is found


async def test_a_key_has_the_lowest_of_its_tiers() -> None:
    scoped = Principal("k", "key", "t", scopes=limited(tiers=["standard", "realtime"]))
    assert (await read(principal=scoped)).request.tier is Tier.STANDARD
    with pytest.raises(Forbidden):
        await read(principal=scoped, tier=Tier.BATCH)


@pytest.mark.parametrize(
    "allowed", [{"models": ["other"]}, {"routes": ["embeddings"]}, {"tiers": ["realtime"]}]
)
async def test_what_the_key_may_not_ask_for_is_refused(allowed: dict[str, list[str]]) -> None:
    scoped = Principal("k", "key", "t", scopes=limited(**allowed))
    with pytest.raises(Forbidden):
        await read(principal=scoped, tier=Tier.BATCH)


async def test_headers_for_engines_and_for_the_gateway_are_kept() -> None:
    asked = await read(
        headers=(
            ("X-Seed", "7"),
            ("X-Seed", "8"),
            ("Authorization", "Bearer secret"),
            ("X-Api-Key", "secret"),
            ("Content-Length", "9"),
            ("Prefer", "respond-async"),
            ("Idempotency-Key", "once"),
            ("X-Trunkline-Where", "region=eu"),
            ("X-Trunkline-Version", "2"),
            ("X-Trunkline-Tier", "standard"),
            ("X-Stainless-Read-Timeout", "5"),
        )
    )
    assert asked.headers == (
        ("x-seed", "7"),
        ("x-seed", "8"),
        ("x-trunkline-where", "region=eu"),
        ("x-trunkline-version", "2"),
    )
    assert asked.request.deadline_s is None, "nobody waits on its connection"


async def test_a_header_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(RequestError):
        await read(headers=(("x-a", "line\r\nx-b: 2"),))


async def test_a_long_body_is_read_in_another_process() -> None:
    reader = BodyReader()
    texts = b",".join(b'{"role": "user", "content": "hello"}' for _ in range(30_000))
    body = b'{"model": "long", "messages": [' + texts + b"]}"
    try:
        asked = await JobRequestReader(lambda: 1.0, reader=reader)("job-1", PRINCIPAL, CHAT, (), body, None)
    finally:
        reader.close()
    assert asked.request.model == "long"
