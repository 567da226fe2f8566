import orjson
import pytest

from gateway.api.errors import dialect_of, error_event, http_error, internal_error
from gateway.domain import errors
from gateway.domain.errors import (
    BadRequest,
    DeadlineExceeded,
    MethodNotAllowed,
    ModelNotFound,
    NoDeployment,
    QueueFull,
    RequestError,
    Unauthenticated,
)
from shared.protocol.routes import Dialect

OPENAI, ANTHROPIC = Dialect.OPENAI, Dialect.ANTHROPIC


def told(error: RequestError, dialect: Dialect = OPENAI) -> dict[bytes, bytes]:
    return dict(http_error(error, dialect, "req_1")[0])


@pytest.mark.parametrize(
    ("dialect", "error", "said"),
    [
        (Dialect.TENSORFLOW, ModelNotFound("no"), {"error": "no"}),
        (Dialect.TGI, BadRequest("no"), {"error": "no", "error_type": "validation"}),
        (Dialect.TGI, QueueFull("no"), {"error": "no", "error_type": "overloaded"}),
        (Dialect.TGI, internal_error("r"), {"error_type": "generation"}),
        (
            Dialect.TORCHSERVE,
            ModelNotFound("no"),
            {"code": 404, "type": "ModelNotFoundException", "message": "no"},
        ),
        (
            Dialect.TORCHSERVE,
            NoDeployment("no"),
            {"code": 503, "type": "ServiceUnavailableException", "message": "no"},
        ),
        (Dialect.TORCHSERVE, QueueFull("no"), {"code": 429, "type": "BadRequestException", "message": "no"}),
    ],
)
def test_clients_of_other_servers_get_their_servers_shapes(
    dialect: Dialect, error: RequestError, said: dict[str, object]
) -> None:
    body = orjson.loads(http_error(error, dialect, "req_1")[1])
    assert body == ({"error": error.message} | said if dialect is Dialect.TGI else said)


def test_openai_clients_get_message_type_param_and_code() -> None:
    headers, body = http_error(ModelNotFound("no", param="model"), OPENAI, "req_1")
    assert orjson.loads(body) == {
        "error": {
            "message": "no",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    assert dict(headers)[b"content-length"] == str(len(body)).encode()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("no"), "invalid_request_error"),
        (Unauthenticated("no"), "authentication_error"),
        (ModelNotFound("no"), "not_found_error"),
        (QueueFull("no"), "rate_limit_error"),
        (NoDeployment("no"), "overloaded_error"),
        (MethodNotAllowed("no", ("POST",)), "invalid_request_error"),
        (internal_error("r"), "api_error"),
    ],
)
def test_anthropic_clients_get_their_own_types_and_the_request_id(error: RequestError, kind: str) -> None:
    body = orjson.loads(http_error(error, ANTHROPIC, "req_1")[1])
    assert body["type"] == "error"
    assert body["error"] == {"type": kind, "message": error.message}
    assert body["request_id"] == "req_1"


@pytest.mark.parametrize(
    ("wait_s", "seconds", "milliseconds"),
    [
        (0.25, b"1", b"250"),
        (1.0, b"1", b"1000"),
        (7.0001, b"8", b"7001"),
        (999, b"120", b"120000"),
        (0, b"1", b"1"),
    ],
)
def test_the_wait_is_told_in_seconds_and_milliseconds_and_never_over_two_minutes(
    wait_s: float, seconds: bytes, milliseconds: bytes
) -> None:
    headers = told(QueueFull("full", retry_after_s=wait_s))
    assert headers[b"retry-after"] == seconds
    assert headers[b"retry-after-ms"] == milliseconds


def test_without_a_wait_nothing_is_said_of_one() -> None:
    assert b"retry-after" not in told(BadRequest("no"))


def test_sdks_are_told_not_to_retry_where_it_cannot_help() -> None:
    assert told(DeadlineExceeded("late"))[b"x-should-retry"] == b"false"
    assert b"x-should-retry" not in told(QueueFull("full"))


def test_a_wrong_method_is_told_the_right_ones_and_a_stranger_how_to_prove_himself() -> None:
    assert told(MethodNotAllowed("no", ("GET", "HEAD")))[b"allow"] == b"GET, HEAD"
    assert told(Unauthenticated("who"))[b"www-authenticate"] == b"Bearer"


def test_the_last_event_is_one_line_of_json() -> None:
    event = error_event(NoDeployment("line one\nline two"), OPENAI, "req_1")
    assert event.startswith(b'data: {"error":')
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2


def test_the_last_event_has_a_name_for_anthropic_clients() -> None:
    event = error_event(NoDeployment("no"), ANTHROPIC, "req_1")
    assert event.startswith(b'event: error\ndata: {"type":"error"')


def test_every_error_says_a_status_that_http_knows_and_a_code() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RequestError)
    ]
    assert len(kinds) > 15
    for kind in kinds:
        assert 400 <= kind.status < 600
        assert kind.code
        assert kind.type


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v2", Dialect.KSERVE),
        ("/v2/models/m/infer", Dialect.KSERVE),
        ("/v2/repository/index", Dialect.KSERVE),
        ("/v2/rerank", OPENAI),
        ("/v2x", OPENAI),
        ("/api/chat", Dialect.OLLAMA),
        ("/v1/messages", ANTHROPIC),
        ("/v1/models", OPENAI),
        ("/v1/models/half", OPENAI),
        ("/v1/models/half:predict", Dialect.TENSORFLOW),
        ("/v1/models/half/versions/3", Dialect.TENSORFLOW),
        ("/v1/models/half/metadata", Dialect.TENSORFLOW),
        ("/predictions/half", Dialect.TORCHSERVE),
        ("/explanations/half/1.0", Dialect.TORCHSERVE),
        ("/ping", Dialect.TORCHSERVE),
        ("/generate_stream", Dialect.TGI),
        ("/", Dialect.TGI),
        ("/info", Dialect.TGI),
    ],
)
def test_the_shape_of_errors_goes_by_the_path(path: str, dialect: Dialect) -> None:
    assert dialect_of(path, {}) is dialect
    assert dialect_of(path, {b"anthropic-version": b"1"}) is ANTHROPIC
