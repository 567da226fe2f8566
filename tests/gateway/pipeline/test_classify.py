from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import (
    BadRequest,
    Forbidden,
    RequestError,
)
from gateway.domain.request import Principal, Request, RequestBody, Tier
from gateway.domain.scopes import limited
from gateway.domain.surface import (
    CHAT,
    ENDPOINTS,
    ENGINE,
    INFERENCE,
    EngineTarget,
    SurfaceEndpoint,
    engine_target,
)
from gateway.pipeline.bodies.facts import JSON_VALUES, read_json
from gateway.pipeline.classify import classify
from gateway.pipeline.client_body import BodyKind, ClientBody
from gateway.pipeline.client_head import ClientHead
from shared.protocol.messages import RequestHead

PRINCIPAL = Principal("k", "key", "tenant")
COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES, AUDIO = (
    next(each for each in ENDPOINTS if each.path == path)
    for path in ("/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/audio/")
)


def head(
    endpoint: SurfaceEndpoint = CHAT,
    headers: list[tuple[bytes, bytes]] | None = None,
    *,
    method: str = "POST",
    model: str | None = None,
) -> ClientHead:
    headers = headers or []
    fields = dict(reversed(headers))
    return ClientHead("req_1", method, endpoint, EngineTarget(endpoint.path, model), headers, fields, 100.0)


def asked(
    members: dict[str, Any] | None = None,
    endpoint: SurfaceEndpoint = CHAT,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> Request:
    body = orjson.dumps({"model": "m", **(members or {})})
    return classify(
        head(endpoint, headers), ClientBody(BodyKind.JSON, RequestBody(body, None, len(body))), PRINCIPAL
    )


def refusal(members: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        asked(members, headers=headers)
    return caught.value


# --- How to read a body ---


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no body"),
        (b"[1]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b'{"a": 1,\n  "b": }', "line 2, column 8"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"a": 1', "not valid JSON"),
        (b"[" * 5000, "not valid JSON"),
    ],
)
def test_what_is_no_json_object_is_refused_saying_where(body: bytes, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_json(body)
    assert says in caught.value.message


def test_a_fault_is_located_but_not_quoted() -> None:
    with pytest.raises(BadRequest) as caught:
        read_json(b'{"secret": sesame}')
    assert "sesame" not in caught.value.message


def test_a_large_body_of_countless_values_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BadRequest) as caught:
        read_json(b'{"a":[' + b"[]," * JSON_VALUES + b"[]]}")
    assert "values" in caught.value.message


@given(st.binary(max_size=200))
def test_reading_any_bytes_gives_an_object_or_a_bad_request(body: bytes) -> None:
    try:
        assert isinstance(read_json(body), dict)
    except BadRequest:
        pass


# --- What is asked ---


def test_the_model_comes_from_the_body_before_the_header() -> None:
    assert asked({"model": "a"}, headers=[(b"x-model", b"b")]).model == "a"


def test_the_model_comes_from_the_header_when_the_body_names_none() -> None:
    body = ClientBody(BodyKind.JSON, RequestBody(b"{}"))
    assert classify(head(headers=[(b"x-model", "größe".encode())]), body, PRINCIPAL).model == "größe"


def test_the_path_names_the_model_of_an_engine_path() -> None:
    body = ClientBody(BodyKind.OPAQUE, RequestBody(b'{"model":"other"}'))
    request = classify(head(ENGINE, model="mine"), body, PRINCIPAL)
    assert (request.model, request.route, request.streaming) == ("mine", "any", False)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 7}, "model"),
        ({"model": ""}, "model"),
        ({"model": "a b"}, "model"),
        ({"model": "a\nb"}, "model"),
        ({"model": "m" * 257}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
    ],
)
def test_a_wrong_type_is_refused_naming_its_member(members: dict[str, Any], param: str) -> None:
    error = refusal(members)
    assert (error.status, error.param) == (400, param)


def test_a_form_says_its_model_and_whether_it_streams() -> None:
    rest = RequestBody(b"--x", None, None)
    body = ClientBody(BodyKind.FORM, rest, {"model": "whisper", "stream": "true"})
    request = classify(head(AUDIO), body, PRINCIPAL)
    assert (request.model, request.streaming, request.route) == ("whisper", True, "audio")


# --- How dear, how urgent ---


def test_input_is_guessed_from_the_bodys_length() -> None:
    assert asked({"prompt": "x" * 4000}).input_tokens == pytest.approx(1000, abs=20)


@pytest.mark.parametrize(
    ("members", "headers", "tier"),
    [
        ({}, [], Tier.STANDARD),
        ({"service_tier": "auto"}, [], Tier.STANDARD),
        ({"service_tier": ["flex"]}, [], Tier.STANDARD),
        ({"service_tier": "priority"}, [], Tier.REALTIME),
        ({"service_tier": "flex"}, [], Tier.BATCH),
        ({"service_tier": "flex"}, [(b"x-trunkline-tier", b"Realtime")], Tier.REALTIME),
    ],
)
def test_the_tier_is_what_header_or_body_say(
    members: dict[str, Any], headers: list[tuple[bytes, bytes]], tier: Tier
) -> None:
    assert asked(members, headers=headers).tier is tier


def test_a_tier_there_is_none_of_is_refused() -> None:
    assert refusal({}, [(b"x-trunkline-tier", b"urgent")]).status == 400


def test_a_stream_has_no_deadline_because_comments_keep_its_client_waiting() -> None:
    assert asked({"stream": True}, headers=[(b"x-stainless-read-timeout", b"20")]).deadline_s is None


# --- What an OPEN frame holds ---


_fields = st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=60)), max_size=12)


@given(
    _fields,
    st.dictionaries(st.sampled_from(["stream", "user", "model"]), st.none() | st.text() | st.booleans()),
)
def test_whatever_is_classified_fits_into_an_open_frame(
    fields: list[tuple[bytes, bytes]], members: dict[str, Any]
) -> None:
    try:
        body = orjson.dumps({"model": "m", **members})
        request = classify(head(headers=fields), ClientBody(BodyKind.JSON, RequestBody(body)), PRINCIPAL)
    except (RequestError, orjson.JSONEncodeError):
        return
    opened = RequestHead(
        deployment="d",
        method=request.method,
        path=request.path,
        headers=request.headers,
        model=request.model,
        request_id=request.id,
        streaming=request.streaming,
        usage=request.usage,
        tier=request.tier,
        trace=request.trace,
    )
    assert RequestHead.from_payload(opened.to_payload()) == opened


# --- What belongs together ---


def test_a_session_is_named_by_a_header_before_anything_in_the_body() -> None:
    session = [(b"x-trunkline-session", b" s-1 ")]
    request = asked({"user": "u"}, headers=session)
    assert request.session_key == "s-1"
    assert "x-trunkline-session" not in dict(request.headers)
    assert asked({"user": "u"}).session_key == "u"


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([], ("comfy", "gpu-1")),
        (["comfy"], ("comfy", "gpu-1")),
        (["comfy@gpu-1"], ("comfy@gpu-1", None)),
    ],
)
def test_what_stands_behind_the_at_sign_is_an_agent_unless_a_model_is_called_so(
    models: list[str], expected: tuple[str, str | None]
) -> None:
    target = engine_target("/engines/comfy@gpu-1/prompt")
    client = ClientHead("r", "POST", ENGINE, target, [], {}, 0.0)
    request = classify(client, ClientBody(BodyKind.OPAQUE, RequestBody(b"")), PRINCIPAL, models.__contains__)
    assert (request.model, request.agent) == expected


def test_scopes_hold_for_the_model_before_the_agent() -> None:
    target = engine_target("/engines/comfy@gpu-1/prompt")
    client = ClientHead("r", "POST", ENGINE, target, [], {}, 0.0)
    for models, allowed in ((["comfy"], True), (["comfy@gpu-1"], False)):
        principal = Principal("k", "key", "t", scopes=limited(models=models, routes=["any"]))
        body = ClientBody(BodyKind.OPAQUE, RequestBody(b""))
        if allowed:
            assert classify(client, body, principal).model == "comfy"
        else:
            with pytest.raises(Forbidden):
                classify(client, body, principal)


GENERATE = next(each for each in ENDPOINTS if each.path == "/generate")


def generating(
    members: dict[str, Any], principal: Principal, headers: list[tuple[bytes, bytes]] | None = None
) -> Request:
    body = orjson.dumps(members)
    content = ClientBody(BodyKind.JSON, RequestBody(body, None, len(body)))

    def only(route: str, shows: Any) -> str | None:
        assert route == "generate"
        return "llama" if shows is None or shows("llama") else None

    return classify(head(GENERATE, headers), content, principal, only=only)


def test_a_request_to_a_server_with_one_model_need_not_name_it() -> None:
    asked = generating({"inputs": "x", "parameters": {"max_new_tokens": 7}}, PRINCIPAL)
    assert (asked.model, asked.need, asked.most_tokens) == ("llama", "generate", 7)
    assert generating({"inputs": "x", "model": "other"}, PRINCIPAL).model == "other"
    assert generating({"inputs": "x"}, PRINCIPAL, [(b"x-model", b"other")]).model == "other"


def test_a_key_for_some_models_finds_the_one_of_them_and_no_other() -> None:
    allowed = Principal("k", "key", "tenant", scopes=limited(models=["llama"]))
    assert generating({"inputs": "x"}, allowed).model == "llama"
    with pytest.raises(BadRequest, match="Say which model"):
        generating({"inputs": "x"}, Principal("k", "key", "tenant", scopes=limited(models=["gemma"])))
    with pytest.raises(Forbidden):
        generating({"inputs": "x"}, allowed, [(b"x-model", b"llama")])


def inferring(
    said: dict[str, Any], *headers: tuple[bytes, bytes], principal: Principal = PRINCIPAL
) -> Request:
    body = orjson.dumps({"inputs": [], "parameters": said})
    content = ClientBody(BodyKind.OPAQUE, RequestBody(body, None, len(body)))
    return classify(head(INFERENCE, list(headers), model="iris"), content, principal)


@pytest.mark.parametrize(
    ("said", "tier", "deadline_s"),
    [
        ({}, Tier.STANDARD, None),
        ({"priority": 1}, Tier.REALTIME, None),
        ({"priority": 7, "timeout": 1_500_000}, Tier.BATCH, 101.5),
        ({"timeout": 10**18}, Tier.STANDARD, 100.0 + 86_400.0),
    ],
)
def test_parameters_of_kserves_protocol_are_tier_and_deadline(
    said: dict[str, Any], tier: Tier, deadline_s: float | None
) -> None:
    request = inferring(said)
    assert (request.tier, request.deadline_s, request.model) == (tier, deadline_s, "iris")


def test_a_header_counts_before_a_priority_and_the_shorter_time_before_the_longer() -> None:
    request = inferring({"priority": 1}, (b"x-trunkline-tier", b"batch"))
    assert request.tier is Tier.BATCH
    waits = (b"x-stainless-read-timeout", b"20")
    assert inferring({"timeout": 3_000_000}, waits).deadline_s == 103.0
    assert inferring({"timeout": 300_000_000}, waits).deadline_s == 121.0


def test_a_priority_that_the_key_may_not_have_is_refused() -> None:
    with pytest.raises(Forbidden):
        inferring({"priority": 1}, principal=Principal("k", "key", "t", scopes=limited(tiers=["batch"])))
