"""Who used what, in memory: each request once, on its day, bounded, and nothing lost when a write fails."""

from structlog.testing import capture_logs

from gateway.domain.quotas import FREE, Price
from gateway.domain.request import Principal, Request, RequestBody
from gateway.observability.gauges import SpentFigures
from gateway.quota.spending import Amounts, Spending
from gateway.quota.usage import MOST_TOKENS, UsageLedger
from gateway.storage import Account, Amount
from shared.protocol.messages import Usage

MIDNIGHT_S = 1_795_305_600.0
"""The first second of 2026-11-22 (UTC)."""


class Wall:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def request(model: str = "m", key_id: str = "k1", tenant: str = "t") -> Request:
    who = Principal(key_id, key_id, tenant)
    return Request("r", who, "POST", "/x", (), model, "chat", False, RequestBody(b""), 0.0, "chat")


def used(prompt: int, completion: int, cached: int = 0) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def account(day: str = "2026-11-22", key_id: str = "k1", tenant: str = "t", model: str = "m") -> Account:
    return Account(day, key_id, tenant, model)


def test_a_request_counts_where_it_was_answered_and_gpu_seconds_where_they_were_spent() -> None:
    ledger = UsageLedger(Wall(MIDNIGHT_S))
    moved = request()
    moved.attempts += ["gpu-1/0", "gpu-2/0"]
    ledger.ran(moved, "gpu-1/0", 0.5)
    ledger.finished(moved, used(10, 5))
    ledger.ran(moved, "gpu-2/0", 2.0)
    assert ledger.take() == {
        Account("2026-11-22", "k1", "t", "m", "gpu-1/0"): Amount(gpu_s=0.5),
        Account("2026-11-22", "k1", "t", "m", "gpu-2/0"): Amount(1, 10, 5, gpu_s=2.0),
    }


def test_requests_of_one_key_and_model_are_added_up() -> None:
    ledger = UsageLedger(Wall(MIDNIGHT_S))
    ledger.finished(request(), used(10, 5, 4))
    ledger.finished(request(), used(1, 2, 0))
    ledger.finished(request(model="other"), used(7, 7))
    ledger.finished(request(key_id="k2"), used(3, 3))
    assert ledger.take() == {
        account(): Amount(2, 11, 7, 4),
        account(model="other"): Amount(1, 7, 7, 0),
        account(key_id="k2"): Amount(1, 3, 3, 0),
    }
    assert ledger.take() == {}


def test_an_answer_of_which_no_usage_was_reported_is_a_request_without_tokens() -> None:
    ledger = UsageLedger(Wall(MIDNIGHT_S))
    ledger.finished(request(), None)
    assert ledger.take() == {account(): Amount(1)}


def test_a_request_belongs_to_the_day_on_which_it_ended() -> None:
    wall = Wall(MIDNIGHT_S - 0.001)
    ledger = UsageLedger(wall)
    ledger.finished(request(), used(1, 1))
    wall.now_s = MIDNIGHT_S
    ledger.finished(request(), used(2, 2))
    wall.now_s = MIDNIGHT_S - 1
    ledger.finished(request(), used(4, 4))
    assert ledger.take() == {account("2026-11-21"): Amount(2, 5, 5), account(): Amount(1, 2, 2)}


def test_the_ledger_is_bounded_and_says_once_that_it_is_full() -> None:
    ledger = UsageLedger(Wall(MIDNIGHT_S), most=2)
    with capture_logs() as logs:
        for model in ("a", "b", "c", "d"):
            ledger.finished(request(model), used(1, 1))
        ledger.finished(request("a"), used(1, 1))
    assert ledger.dropped == 2
    assert [line["event"] for line in logs] == ["usage_lost"]
    assert ledger.take() == {account(model="a"): Amount(2, 2, 2), account(model="b"): Amount(1, 1, 1)}


def test_an_engine_that_counts_nonsense_does_not_ruin_the_sums() -> None:
    ledger = UsageLedger(Wall(MIDNIGHT_S))
    ledger.finished(request(), used(-5, 2**70))
    assert ledger.take() == {account(): Amount(1, 0, MOST_TOKENS)}


def test_what_requests_took_since_the_start_is_told_by_model_however_often_it_was_written() -> None:
    ledger = UsageLedger(Wall(MIDNIGHT_S), price=lambda model: Price(1.0, 2.0, 0.5) if model == "m" else FREE)
    ledger.ran(request(), "gpu-1/0", 4.0)
    ledger.finished(request(), used(1_000_000, 500_000))
    ledger.ran(request(model="free"), "gpu-1/0", 3.0)
    ledger.take()
    assert ledger.figures() == {"m": SpentFigures(4.0, 4.0), "free": SpentFigures(3.0, 0.0)}


def test_spending_is_seen_at_once_and_goes_on_after_sums_were_written() -> None:
    spending = Spending(MIDNIGHT_S)
    ledger = UsageLedger(Wall(MIDNIGHT_S), price=lambda model: Price(1.0, 2.0, 0.5), spending=spending)
    for _ in range(2):
        ledger.ran(request(), "", 4.0)
        ledger.finished(request(), used(1_000_000, 500_000))
        ledger.take()
    assert spending.of("t", MIDNIGHT_S) == (Amounts(3_000_000, 8.0, 8.0),) * 2


def test_what_is_spent_counts_in_the_day_that_somebody_else_saw_begin() -> None:
    wall, spending = Wall(MIDNIGHT_S - 2), Spending(MIDNIGHT_S - 2)
    ledger = UsageLedger(wall, spending=spending)
    ledger.finished(request(), used(1, 1))
    wall.now_s = MIDNIGHT_S
    assert spending.of("t", wall.now_s) == (Amounts(), Amounts(2))
    ledger.finished(request(), used(2, 2))
    assert spending.of("t", wall.now_s) == (Amounts(4), Amounts(6))
    assert ledger.take() == {account("2026-11-21"): Amount(1, 1, 1), account(): Amount(1, 2, 2)}
