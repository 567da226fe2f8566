"""Commands ask again where an answer was lost, and tell at once what no asking would change."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gateway.cli_support import asking_again
from gateway.cli_support.asking_again import MOST_BROKEN, PATIENCE_S, answered, new_idempotency_key
from gateway.cli_support.gateway_client import GatewayFailed, Unanswered
from tests.support.clock import ManualClock

BROKEN = GatewayFailed("it broke off", unanswered=Unanswered.BROKEN_OFF)
NOT_HEARD = GatewayFailed("nobody listens", unanswered=Unanswered.NOT_HEARD)
AWAY = GatewayFailed("it stops", 503)
REFUSED = GatewayFailed("no such model", 404)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    made = ManualClock(1000.0)
    monkeypatch.setattr(asking_again, "time", SimpleNamespace(monotonic=made, sleep=made.advance))
    return made


def asks(*failures: GatewayFailed, for_ever: bool = False) -> Callable[[], str]:
    """Fails so, the last one again and again with ``for_ever``, then is answered."""
    left = list(failures)

    def ask() -> str:
        if left:
            raise left[0] if for_ever and len(left) == 1 else left.pop(0)
        return "answer"

    return ask


def test_what_breaks_off_is_asked_again_and_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(asks(BROKEN, NOT_HEARD, AWAY)) == "answer"
    assert capsys.readouterr().err.count("asking again") == 1


@pytest.mark.parametrize("failure", [NOT_HEARD, AWAY, REFUSED])
def test_a_first_request_that_nobody_takes_is_told_at_once(failure: GatewayFailed) -> None:
    with pytest.raises(GatewayFailed, match=str(failure)) as failed:
        answered(asks(failure))
    assert failed.value.unanswered is failure.unanswered


def test_a_gateway_that_answered_before_is_waited_for() -> None:
    assert answered(asks(NOT_HEARD, AWAY, BROKEN), reached=True) == "answer"
    assert answered(asks(GatewayFailed("slower", 429)), reached=True, away=(429,)) == "answer"
    with pytest.raises(GatewayFailed, match="no such model"):
        answered(asks(NOT_HEARD, REFUSED), reached=True)


def test_waiting_ends(clock: ManualClock) -> None:
    began_s = clock()
    with pytest.raises(GatewayFailed, match="nobody listens") as failed:
        answered(asks(NOT_HEARD, for_ever=True), reached=True)
    assert PATIENCE_S < clock() - began_s <= PATIENCE_S + 2.0
    assert failed.value.unanswered is Unanswered.NOT_HEARD


def test_an_address_at_which_every_connection_breaks_off_is_given_up_soon(clock: ManualClock) -> None:
    began_s = clock()
    with pytest.raises(GatewayFailed, match="it broke off"):
        answered(asks(BROKEN, for_ever=True))
    assert clock() - began_s < MOST_BROKEN


def test_a_request_that_broke_off_may_have_been_carried_out_whatever_comes_after() -> None:
    with pytest.raises(GatewayFailed, match="no such model") as failed:
        answered(asks(BROKEN, REFUSED))
    assert (failed.value.status, failed.value.unanswered) == (404, Unanswered.BROKEN_OFF)


def test_keys_are_new() -> None:
    assert new_idempotency_key() != new_idempotency_key()
