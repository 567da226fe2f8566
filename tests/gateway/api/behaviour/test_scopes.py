"""What a client with a limited key sees of the surface."""

import orjson
import pytest

from gateway.domain.request import Principal, Tier
from gateway.domain.scopes import AdminRole, Scopes, limited
from gateway.fleet.registry import ServedModel
from tests.gateway.api.support import BEARER, JSON_TYPE, FakeCatalog, FakeKeys, Surface

CHAT = "/v1/chat/completions"
TEXT = (b"content-type", b"text/plain")
NAMED = (b"x-model", b"llama-8b")
FORM = (b"content-type", b"multipart/form-data; boundary=XX")


def surface_for(scopes: Scopes | None, role: AdminRole | None = None) -> Surface:
    infos = [
        ServedModel(name, 1, "trunkline", True, 1, ("chat",)) for name in ("gpt", "llama-8b", "llama-70b")
    ]
    keys = FakeKeys(Principal("k", "limited", "t", None, scopes, role))
    return Surface(catalog=FakeCatalog(*infos), keys=keys)


def code_in(content: bytes) -> object:
    return orjson.loads(content)["error"]["code"]


@pytest.mark.parametrize(
    ("path", "body", "headers", "code"),
    [
        (CHAT, b'{"model":"gpt"}', (JSON_TYPE,), "model_not_allowed"),
        (CHAT, b"{}", (JSON_TYPE, (b"x-model", b"gpt")), "model_not_allowed"),
        (CHAT, b'{"model":"llama-8b","Model":"gpt"}', (JSON_TYPE,), "model_not_allowed"),
        (CHAT, b'{"model":"gpt"}', (TEXT, NAMED), "model_not_allowed"),
        (
            "/v1/audio/transcriptions",
            b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\ngpt\r\n--XX--\r\n',
            (FORM,),
            "model_not_allowed",
        ),
        (CHAT, b"{}", (JSON_TYPE, NAMED), "model_not_allowed"),
        (CHAT, b'{"model":null}', (JSON_TYPE, NAMED), "model_not_allowed"),
        (CHAT, b'{"model":"gpt","model":"llama-8b"}', (JSON_TYPE,), "model_not_allowed"),
        (CHAT, b'\xef\xbb\xbf{"model":"gpt"}', (TEXT, NAMED), "model_not_allowed"),
        (
            CHAT,
            b'\n{"model":"gpt"}\r\n--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nllama-8b\r\n'
            b"--XX--\r\n",
            (FORM,),
            "model_not_allowed",
        ),
        (CHAT, b'\n{"model":"gpt"}\r\n--XX--\r\n', (FORM, NAMED), "model_not_allowed"),
        ("/v1/audio/transcriptions", b"--XX--\r\n", (FORM, NAMED), "model_not_allowed"),
        ("/v1/embeddings", b'{"model":"llama-8b"}', (JSON_TYPE,), "route_not_allowed"),
        ("/engines/llama-8b/v1/chat/completions", b'{"model":"gpt"}', (JSON_TYPE,), "route_not_allowed"),
        (
            CHAT,
            b'{"model":"llama-8b"}',
            (JSON_TYPE, (b"x-trunkline-tier", b"realtime")),
            "tier_not_allowed",
        ),
        (CHAT, b'{"model":"llama-8b","service_tier":"priority"}', (JSON_TYPE,), "tier_not_allowed"),
    ],
)
async def test_what_the_key_does_not_allow_reaches_nobody(
    path: str, body: bytes, headers: tuple[tuple[bytes, bytes], ...], code: str
) -> None:
    surface = surface_for(limited(["llama-*"], ["chat", "audio"], ["batch", "standard"]))
    call = await surface.post(path, body, *headers)
    assert (call.status, code_in(call.content)) == (403, code)
    assert surface.dispatcher.requests == []


@pytest.mark.parametrize(
    ("query", "status"),
    [(b"api-version=1&of=model", 200), (b"model=gpt", 403), (b"x=1;%4dodel=gpt", 403), (b"a&model", 403)],
)
async def test_the_query_names_no_model(query: bytes, status: int) -> None:
    surface, body = surface_for(limited(["llama-*"])), b'{"model":"llama-8b"}'
    call = surface.ask("POST", CHAT, JSON_TYPE, BEARER, query=query)
    call.body(body)
    assert (await call.done()).status == status


async def test_a_form_names_one_model() -> None:
    part = b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
    surface = surface_for(limited(["llama-*"]))
    twice = part % b"gpt" + part % b"llama-8b" + b"--XX--\r\n"
    call = await surface.post("/v1/audio/transcriptions", twice, FORM)
    assert (call.status, code_in(call.content)) == (400, "invalid_multipart")
    once = part % b"llama-8b" + b"--XX--\r\n"
    assert (await surface.post("/v1/audio/transcriptions", once, FORM)).status == 200


async def test_what_goes_to_an_engines_own_paths_is_no_affair_of_ours_where_that_is_allowed() -> None:
    surface = surface_for(limited(["llama-*"], ["any"]))
    call = await surface.post("/engines/llama-8b/tokenize", b'{"model":"gpt"}', JSON_TYPE)
    assert call.status == 200, call.content


async def test_what_the_key_allows_goes_through_in_a_tier_it_allows() -> None:
    surface = surface_for(limited(["llama-*"], ["chat"], ["batch"]))
    call = await surface.post(CHAT, b'{"model":"llama-8b"}', JSON_TYPE)
    assert call.status == 200
    assert surface.dispatcher.request.tier is Tier.BATCH


async def test_a_client_that_is_not_limited_may_call_itself_realtime() -> None:
    surface = surface_for(None)
    await surface.post(CHAT, b'{"model":"gpt","service_tier":"priority"}', JSON_TYPE)
    assert surface.dispatcher.request.tier is Tier.REALTIME


async def test_models_beyond_the_key_are_not_listed_and_not_found() -> None:
    surface = surface_for(limited(["llama-*"]))
    found = orjson.loads((await surface.get("/v1/models")).content)
    assert [model["id"] for model in found["data"]] == ["llama-8b", "llama-70b"]
    assert (found["first_id"], found["last_id"]) == ("llama-8b", "llama-70b")
    assert (await surface.get("/v1/models/llama-8b")).status == 200
    there, nowhere = await surface.get("/v1/models/gpt"), await surface.get("/v1/models/abc")
    assert there.status == nowhere.status == 404
    assert there.content.replace(b"gpt", b"abc") == nowhere.content


async def test_limits_of_routes_and_tiers_hide_no_model() -> None:
    found = orjson.loads((await surface_for(limited(tiers=["batch"])).get("/v1/models")).content)
    assert len(found["data"]) == 3


async def test_a_limited_key_reads_the_metrics_only_with_a_role() -> None:
    limits = limited(["llama-*"])
    refused = await surface_for(limits).get("/metrics")
    assert (refused.status, code_in(refused.content)) == (403, "role_required")
    assert (await surface_for(limits, AdminRole.VIEWER).get("/metrics")).status == 200
    assert (await surface_for(None).get("/metrics")).status == 200
