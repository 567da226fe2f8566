from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import (
    BadRequest,
    Forbidden,
    HeadersTooLarge,
    RequestError,
    UnsupportedEncoding,
)
from gateway.domain.request import Principal, Request, RequestBody, Tier
from gateway.domain.residency import read_where
from gateway.domain.scopes import limited
from gateway.domain.surface import (
    CHAT,
    ENDPOINTS,
    ENGINE,
    EngineTarget,
    SurfaceEndpoint,
    engine_target,
)
from gateway.pipeline.bodies.facts import JSON_VALUES, read_json
from gateway.pipeline.classify import (
    DEADLINE_GRACE_S,
    BodyKind,
    ClientBody,
    ClientHead,
    body_kind,
    classify,
    forwarded_headers,
)
from shared.protocol.messages import RequestHead, UsageMode

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
    ("endpoint", "fields", "kind"),
    [
        (CHAT, {b"content-type": b"application/json"}, BodyKind.JSON),
        (CHAT, {b"content-type": b"application/x-www-form-urlencoded"}, BodyKind.JSON),
        (CHAT, {}, BodyKind.JSON),
        (AUDIO, {b"content-type": b"Multipart/Form-Data; boundary=x"}, BodyKind.FORM),
        (AUDIO, {b"content-type": b"audio/wav", b"x-model": b"whisper"}, BodyKind.OPAQUE),
        (CHAT, {b"content-type": b"application/json", b"x-model": b"m"}, BodyKind.JSON),
        (ENGINE, {b"content-type": b"application/json"}, BodyKind.OPAQUE),
    ],
)
def test_a_body_is_read_as_its_type_says(
    endpoint: SurfaceEndpoint, fields: dict[bytes, bytes], kind: BodyKind
) -> None:
    assert body_kind(endpoint, "POST", fields) is kind


def test_compressed_bodies_are_refused() -> None:
    with pytest.raises(UnsupportedEncoding):
        body_kind(CHAT, "POST", {b"content-encoding": b"gzip"})
    assert body_kind(CHAT, "POST", {b"content-encoding": b"Identity"}) is BodyKind.JSON


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


def test_an_engine_stream_is_known_by_what_the_client_accepts() -> None:
    body = ClientBody(BodyKind.OPAQUE, RequestBody(b""))
    request = classify(head(ENGINE, [(b"accept", b"text/event-stream")], model="m"), body, PRINCIPAL)
    assert request.streaming


def test_a_form_says_its_model_and_whether_it_streams() -> None:
    rest = RequestBody(b"--x", None, None)
    body = ClientBody(BodyKind.FORM, rest, {"model": "whisper", "stream": "true"})
    request = classify(head(AUDIO), body, PRINCIPAL)
    assert (request.model, request.streaming, request.route) == ("whisper", True, "audio")


# --- Usage ---


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_usage_is_asked_for_when_the_client_did_not(endpoint: SurfaceEndpoint) -> None:
    request = asked({"stream": True}, endpoint)
    assert request.usage is UsageMode.STRIP
    assert orjson.loads(request.body.prefix)["stream_options"] == {"include_usage": True}
    assert request.body.size_bytes == len(request.body.prefix)
    assert dict(request.headers)["content-length"] == str(len(request.body.prefix))


def test_usage_is_kept_when_the_client_asked_and_the_body_is_untouched() -> None:
    members = {"stream": True, "stream_options": {"include_usage": True}}
    request = asked(members)
    assert request.usage is UsageMode.KEEP
    assert request.body.prefix == orjson.dumps({"model": "m", **members})


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"x": [1]}, {"include_usage": None}])
def test_other_options_are_kept_beside_the_one_that_asks(options: dict[str, Any] | None) -> None:
    request = asked({"stream": True, "stream_options": options})
    sent = orjson.loads(request.body.prefix)["stream_options"]
    assert request.usage is UsageMode.STRIP
    assert sent == {**(options or {}), "include_usage": True}


@pytest.mark.parametrize(
    ("members", "endpoint"),
    [({}, CHAT), ({"stream": False}, CHAT), ({"stream": True}, RESPONSES), ({"stream": True}, MESSAGES)],
)
def test_usage_needs_no_asking_elsewhere(members: dict[str, Any], endpoint: SurfaceEndpoint) -> None:
    request = asked(members, endpoint)
    assert request.usage is UsageMode.NONE
    assert orjson.loads(request.body.prefix) == {"model": "m", **members}


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


def test_the_deadline_is_a_little_after_the_sdk_stops_waiting() -> None:
    headers = [(b"x-stainless-read-timeout", b"20")]
    assert asked({}, headers=headers).deadline_s == 120.0 + DEADLINE_GRACE_S


def test_a_stream_has_no_deadline_because_comments_keep_its_client_waiting() -> None:
    assert asked({"stream": True}, headers=[(b"x-stainless-read-timeout", b"20")]).deadline_s is None


@pytest.mark.parametrize("value", [b"", b"NOT_GIVEN", b"nan", b"inf", b"-1", b"0", b"1e9"])
def test_a_read_timeout_that_is_none_is_ignored(value: bytes) -> None:
    assert asked({}, headers=[(b"x-stainless-read-timeout", value)]).deadline_s is None


def test_the_session_key_is_the_most_telling_one() -> None:
    assert asked({"prompt_cache_key": "p", "user": "u"}).session_key == "p"
    assert asked({"user": "u"}).session_key == "u"
    assert asked({"metadata": {"user_id": "a"}}, MESSAGES).session_key == "a"
    assert asked({"user": 3, "metadata": "x"}).session_key is None


def test_trace_context_is_taken_when_it_is_one() -> None:
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert asked({}, headers=[(b"traceparent", trace)]).trace == trace.decode()
    assert asked({}, headers=[(b"traceparent", b"hello\xff")]).trace is None


# --- Headers ---


def test_engines_do_not_see_credentials_connections_or_where_the_client_is() -> None:
    hidden = [
        (b"authorization", b"Bearer k"),
        (b"x-api-key", b"k"),
        (b"cookie", b"a=b"),
        (b"host", b"gateway"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"Connection", b"x-other"),
        (b"x-hop", b"1"),
        (b"x-other", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"te", b"trailers"),
        (b"x-forwarded-for", b"10.0.0.1"),
        (b"forwarded", b"for=10.0.0.1"),
        (b"x-stainless-lang", b"python"),
        (b"x-trunkline-tier", b"batch"),
        (b"x-request-id", b"1"),
        (b"accept-encoding", b"gzip"),
        (b"content-length", b"99"),
    ]
    seen = [(b"content-type", b"application/json"), (b"X-Custom", b"caf\xe9"), (b"user-agent", b"test")]
    kept = forwarded_headers(head(headers=hidden + seen), 5)
    assert kept == (
        ("content-type", "application/json"),
        ("x-custom", "café"),
        ("user-agent", "test"),
        ("content-length", "5"),
    )


def test_a_length_is_told_only_when_there_is_a_body() -> None:
    assert forwarded_headers(head(ENGINE, method="GET"), 0) == ()
    assert forwarded_headers(head(ENGINE), 0) == (("content-length", "0"),)
    assert forwarded_headers(head(ENGINE), None) == ()


@pytest.mark.parametrize("field", [(b"x\xe9", b"1"), (b"a b", b"1"), (b"x", b"a\x00b"), (b"x", b"a\nb")])
def test_a_header_that_would_break_the_tunnel_is_refused(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(BadRequest):
        forwarded_headers(head(headers=[field]), 0)


@pytest.mark.parametrize("fields", [[(b"x", b"a" * 40_000)], [(b"x%d" % i, b"1") for i in range(200)]])
def test_more_headers_than_a_tunnel_carries_are_refused(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(HeadersTooLarge):
        forwarded_headers(head(headers=fields), 0)


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


@pytest.mark.parametrize("piece", [b'"', b"\xff"])
def test_headers_that_grow_too_long_when_quoted_are_too_large(piece: bytes) -> None:
    with pytest.raises(HeadersTooLarge):
        forwarded_headers(head(headers=[(b"x-long", piece * 30_000)]), 5)


# --- Where it may run ---


def where_of_request(policy: str | None, *wishes: bytes) -> Request:
    principal = Principal("k", "key", "tenant", None if policy is None else read_where(policy))
    client = head(headers=[(b"x-trunkline-where", wish) for wish in wishes])
    return classify(client, ClientBody(BodyKind.JSON, RequestBody(b'{"model":"m"}', None, 13)), principal)


@pytest.mark.parametrize(
    ("policy", "wishes", "where"),
    [
        (None, [], None),
        ("region=eu", [], "region=eu"),
        (None, [b"region=eu"], "region=eu"),
        (None, [b"region=eu", b"region=uk"], "region=eu,region=uk"),
        ("region=eu,region=uk", [b"region=uk,region=us"], "region=uk"),
        ("region=eu", [b"zone=a"], "region=eu,zone=a"),
    ],
)
def test_a_request_runs_where_its_key_allows_it_or_in_fewer_places(
    policy: str | None, wishes: list[bytes], where: str | None
) -> None:
    request = where_of_request(policy, *wishes)
    assert request.where == (None if where is None else read_where(where))
    assert not any(name.startswith("x-trunkline") for name, _ in request.headers)


def test_a_request_cannot_go_where_its_key_may_not() -> None:
    with pytest.raises(Forbidden, match=r"only on agents with region=eu") as caught:
        where_of_request("region=eu", b"region=us")
    assert (caught.value.status, caught.value.code) == (403, "residency_forbidden")


@pytest.mark.parametrize("wish", [b"", b"eu", b"region=\xff", b"region=eu,,"])
def test_a_constraint_that_cannot_be_read_is_refused_rather_than_ignored(wish: bytes) -> None:
    with pytest.raises(BadRequest, match="x-trunkline-where cannot be read") as caught:
        where_of_request(None, wish)
    assert caught.value.code == "invalid_where"


# --- What belongs together ---


def test_a_session_is_named_by_a_header_before_anything_in_the_body() -> None:
    session = [(b"x-trunkline-session", b" s-1 ")]
    request = asked({"user": "u"}, headers=session)
    assert request.session_key == "s-1"
    assert "x-trunkline-session" not in dict(request.headers)
    assert asked({"user": "u"}).session_key == "u"


@pytest.mark.parametrize("value", [b"", b" ", b"s" * 257, b"a\x07b"])
def test_what_can_be_no_session_is_refused(value: bytes) -> None:
    refused = refusal({}, headers=[(b"x-trunkline-session", value)])
    assert (refused.status, refused.code) == (400, "invalid_session")


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
