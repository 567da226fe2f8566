"""Which failures lead to another attempt, and what clients are told when none does."""

import pytest

from gateway.domain import Principal, Request, RequestBody
from gateway.errors import RequestError
from gateway.failover import EFFECTS, Effect, break_reason, may_go_elsewhere, request_error
from shared.errors import ErrorCode


def request(route: str = "chat", *, begun: bool = False, attempts: int = 1) -> Request:
    return Request(
        id="r",
        principal=Principal("k", "key", "tenant"),
        method="POST",
        path="/v1/chat/completions",
        headers=(),
        model="m",
        route=route,
        streaming=True,
        body=RequestBody(b"", rest_begun=begun),
        arrived_s=0.0,
        attempts=["a/d"] * attempts,
    )


@pytest.mark.parametrize("code", ErrorCode)
def test_only_what_no_engine_saw_is_always_given_on(code: ErrorCode) -> None:
    unseen = code in (ErrorCode.REFUSED, ErrorCode.ENGINE_UNREACHABLE)
    assert may_go_elsewhere(request("any"), code, 3) == unseen


@pytest.mark.parametrize("code", ErrorCode)
def test_inference_is_given_on_unless_an_engine_answered_in_a_way(code: ErrorCode) -> None:
    assert may_go_elsewhere(request("chat"), code, 3) == (EFFECTS.get(code, Effect.FINAL) is not Effect.FINAL)


@pytest.mark.parametrize("code", ErrorCode)
def test_nothing_is_given_on_that_cannot_be_sent_again_or_was_tried_enough(code: ErrorCode) -> None:
    assert not may_go_elsewhere(request(begun=True), code, 3)
    assert not may_go_elsewhere(request(attempts=3), code, 3)


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_words_for_clients(code: ErrorCode) -> None:
    error = request_error(code, "why")
    assert isinstance(error, RequestError)
    assert error.status >= 413
    assert error.message.endswith(".")
    assert break_reason(code, "why").endswith(".")
    assert code is ErrorCode.SESSION_LOST or "why" in error.message
