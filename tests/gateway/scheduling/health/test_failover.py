"""Which failures lead to another attempt, and what clients are told when none does."""

import pytest

from gateway.domain.errors import RequestError
from gateway.domain.request import Principal, Request, RequestBody
from gateway.scheduling.health.failover import (
    ENGINES_FAULT,
    RULES,
    Effect,
    Trouble,
    break_reason,
    may_be_repeated,
    request_error,
    trouble_of_status,
)
from shared.protocol.errors import ErrorCode


def request(route: str = "chat", *, begun: bool = False) -> Request:
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
        need=route,
    )


@pytest.mark.parametrize(("code", "rule"), RULES.items())
def test_only_what_no_engine_saw_is_always_given_on(
    code: ErrorCode, rule: tuple[Trouble | None, Effect]
) -> None:
    unseen = code in (ErrorCode.REFUSED, ErrorCode.DECLINED, ErrorCode.ENGINE_UNREACHABLE)
    assert may_be_repeated(request("any"), rule[1]) == unseen
    assert may_be_repeated(request("chat"), rule[1])
    assert not may_be_repeated(request("chat", begun=True), rule[1])


@pytest.mark.parametrize("code", [ErrorCode.DEADLINE, ErrorCode.TOO_LARGE, ErrorCode.PROTOCOL_ERROR])
def test_what_another_engine_would_do_no_better_at_is_final(code: ErrorCode) -> None:
    assert code not in RULES
    assert not may_be_repeated(request("chat"), Effect.FINAL)


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        (200, None),
        (400, None),
        (404, None),
        (429, Trouble.OVERLOADED),
        (500, Trouble.STATUS),
        (501, None),
        (502, Trouble.STATUS),
        (503, Trouble.OVERLOADED),
    ],
)
def test_what_an_engines_status_says_of_it(status: int, trouble: Trouble | None) -> None:
    assert trouble_of_status(status) is trouble


def test_a_lost_tunnel_is_not_the_engines_fault() -> None:
    assert not ENGINES_FAULT & {Trouble.LOST, Trouble.DRAINING, Trouble.REFUSED, Trouble.UNREACHABLE}


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_words_for_clients(code: ErrorCode) -> None:
    error = request_error(code, "why")
    assert isinstance(error, RequestError)
    assert error.status >= 413
    assert error.message.endswith(".")
    assert break_reason(code, "why").endswith(".")
    assert code is ErrorCode.SESSION_LOST or "why" in error.message
