"""Checks run side by side, in order, and within their time."""

import threading

from gateway.tools.doctor.runner import run_checks
from shared.process.checks import Check, CheckOutcome, CheckState, failed, passed, skipped


def _states(*checks: Check) -> dict[str, CheckState]:
    return {each.id: each.state for each in run_checks(checks)}


def test_results_are_in_the_order_of_the_checks() -> None:
    second = threading.Event()

    def late() -> CheckOutcome:
        assert second.wait(10)
        return passed("It is late.")

    def early() -> CheckOutcome:
        second.set()
        return passed("It is early.")

    assert list(_states(Check("late", late), Check("early", early))) == ["late", "early"]


def test_a_check_begins_when_those_before_it_are_over() -> None:
    order: list[str] = []

    def noting(name: str) -> Check:
        def run() -> CheckOutcome:
            order.append(name)
            return passed("It is well.")

        return Check(name, run, after=("first",) if name != "first" else ())

    _states(noting("second"), noting("first"))
    assert order == ["first", "second"]


def test_what_needs_a_failed_check_is_skipped_and_so_is_what_needs_that() -> None:
    ran: list[str] = []

    def run() -> CheckOutcome:
        ran.append("ran")
        return passed("It is well.")

    wrong = Check("a", lambda: failed("It is wrong.", "Mend it."))
    assert _states(wrong, Check("b", run, after=("a",)), Check("c", run, after=("b",))) == {
        "a": CheckState.FAILED,
        "b": CheckState.SKIPPED,
        "c": CheckState.SKIPPED,
    }
    assert ran == []


def test_what_needs_a_skipped_check_runs() -> None:
    none = Check("a", lambda: skipped("There is none."))
    assert _states(none, Check("b", lambda: passed("It is well."), after=("a",)))["b"] is CheckState.OK


def test_a_check_that_hangs_fails_after_its_time_and_holds_nothing_up() -> None:
    never = threading.Event()

    def hang() -> CheckOutcome:
        never.wait(60)
        return passed("It came after all.")

    found = _states(Check("hangs", hang, limit_s=0.05), Check("works", lambda: passed("It is well.")))
    assert found == {"hangs": CheckState.FAILED, "works": CheckState.OK}
    never.set()


def test_a_check_that_raises_is_shown_as_failed_with_the_error() -> None:
    def run() -> CheckOutcome:
        raise ZeroDivisionError("of all things")

    [found] = run_checks([Check("a", run)])
    assert found.state is CheckState.FAILED
    assert "ZeroDivisionError: of all things" in found.outcome.words
