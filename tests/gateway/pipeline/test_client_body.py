"""How a client's body is read, and what it asks for."""

from typing import Any

import orjson
import pytest

from gateway.domain.errors import (
    UnsupportedEncoding,
)
from gateway.domain.request import RequestBody
from gateway.domain.surface import (
    CHAT,
    ENGINE,
    SurfaceEndpoint,
)
from gateway.pipeline.classify import classify
from gateway.pipeline.client_body import BodyKind, ClientBody, body_kind
from shared.protocol.messages import UsageMode
from tests.gateway.pipeline.test_classify import (
    AUDIO,
    COMPLETIONS,
    MESSAGES,
    PRINCIPAL,
    RESPONSES,
    asked,
    head,
)


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


def test_an_engine_stream_is_known_by_what_the_client_accepts() -> None:
    body = ClientBody(BodyKind.OPAQUE, RequestBody(b""))
    request = classify(head(ENGINE, [(b"accept", b"text/event-stream")], model="m"), body, PRINCIPAL)
    assert request.streaming


def test_the_session_key_is_the_most_telling_one() -> None:
    assert asked({"prompt_cache_key": "p", "user": "u"}).session_key == "p"
    assert asked({"user": "u"}).session_key == "u"
    assert asked({"metadata": {"user_id": "a"}}, MESSAGES).session_key == "a"
    assert asked({"user": 3, "metadata": "x"}).session_key is None
