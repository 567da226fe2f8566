"""Circuits: when they open, for how long, and what closes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.health.circuit import (
    COOL_DOWN_S,
    FAILURES_IN_A_ROW,
    GONE_COOL_DOWN_S,
    MAX_COOL_DOWN_S,
    PATIENCE_S,
    RELAPSE_S,
    Circuit,
    CircuitState,
    Fault,
)


def state(circuit: Circuit) -> CircuitState:
    return circuit.state


def fail(circuit: Circuit, request: str, now: float, fault: Fault = Fault.FAILURE) -> bool:
    return circuit.failed(request, fault, now, jitter=0.0)


def opened(now: float = 0.0, fault: Fault = Fault.FAILURE) -> Circuit:
    circuit = Circuit()
    for number in range(FAILURES_IN_A_ROW):
        fail(circuit, f"r{number}", now, fault)
    assert state(circuit) is CircuitState.OPEN
    return circuit


def half_open(now: float = 0.0, fault: Fault = Fault.FAILURE) -> tuple[Circuit, float]:
    circuit = opened(now, fault)
    circuit.advance(circuit.until_s)
    assert state(circuit) is CircuitState.HALF_OPEN
    return circuit, circuit.until_s


def test_it_opens_after_five_failures_in_a_row_and_says_so_once() -> None:
    circuit = Circuit()
    said = [fail(circuit, f"r{number}", 0.0) for number in range(7)]
    assert said == [False] * 4 + [True] + [False] * 2
    assert state(circuit) is CircuitState.OPEN
    assert circuit.until_s == COOL_DOWN_S


def test_a_success_ends_a_row() -> None:
    circuit = Circuit()
    for number in range(4):
        fail(circuit, f"r{number}", 0.0)
    circuit.succeeded("good", 0.0)
    for number in range(4):
        assert not fail(circuit, f"s{number}", 0.0)


def test_it_opens_when_half_of_ten_lately_failed() -> None:
    circuit = Circuit()
    for number in range(4):
        circuit.succeeded(f"good{number}", 0.0)
        fail(circuit, f"bad{number}", 0.0)
    assert state(circuit) is CircuitState.CLOSED, "eight outcomes are too few"
    circuit.succeeded("good", 0.0)
    assert fail(circuit, "bad", 0.0)


def test_what_was_long_ago_does_not_count() -> None:
    circuit = Circuit()
    for number in range(4):
        circuit.succeeded(f"good{number}", 0.0)
        fail(circuit, f"bad{number}", 0.0)
    circuit.succeeded("good", 11.0)
    assert not fail(circuit, "bad", 11.0)


def test_one_poisonous_request_opens_nothing_however_often_it_fails() -> None:
    circuit = Circuit()
    for _ in range(100):
        fail(circuit, "poison", 0.0)
    assert state(circuit) is CircuitState.CLOSED


def test_an_engine_that_is_not_there_opens_it_at_once_for_a_short_time() -> None:
    circuit = Circuit()
    assert fail(circuit, "r", 5.0, Fault.GONE)
    assert circuit.until_s == 5.0 + GONE_COOL_DOWN_S


def test_one_probe_at_a_time_goes_through_and_closes_it() -> None:
    circuit, now = half_open()
    circuit.started("probe", now)
    assert state(circuit) is CircuitState.PROBING
    circuit.succeeded("older", now)
    assert state(circuit) is CircuitState.PROBING, "what ran before says little"
    assert circuit.succeeded("probe", now + 1)
    assert state(circuit) is CircuitState.CLOSED


def test_each_failed_probe_doubles_the_cool_down_up_to_a_minute() -> None:
    circuit = opened()
    cool_downs = []
    now = 0.0
    for number in range(9):
        cool_downs.append(circuit.until_s - now)
        now = circuit.until_s
        circuit.advance(now)
        circuit.started(f"p{number}", now)
        assert fail(circuit, f"p{number}", now)
    assert cool_downs == [1, 2, 4, 8, 16, 32, MAX_COOL_DOWN_S, MAX_COOL_DOWN_S, MAX_COOL_DOWN_S]


def test_a_relapse_goes_on_doubling_and_a_late_failure_begins_anew() -> None:
    circuit, now = half_open()
    circuit.started("probe", now)
    circuit.succeeded("probe", now)
    fail(circuit, "soon", now + 1, Fault.STALL)
    assert circuit.until_s == now + 1 + 2 * COOL_DOWN_S
    circuit.advance(now + 10)
    circuit.started("probe2", now + 10)
    circuit.succeeded("probe2", now + 10)
    later = now + 10 + RELAPSE_S
    fail(circuit, "later", later, Fault.STALL)
    assert circuit.until_s == later + COOL_DOWN_S


def test_jitter_shortens_a_cool_down() -> None:
    circuit = Circuit()
    circuit.failed("r", Fault.STALL, 0.0, jitter=1.0)
    assert circuit.until_s == pytest.approx(0.75 * COOL_DOWN_S)


def test_a_probe_whose_client_leaves_has_shown_nothing() -> None:
    circuit, now = half_open()
    circuit.started("probe", now)
    circuit.released("probe")
    assert state(circuit) is CircuitState.HALF_OPEN


def test_a_request_that_failed_here_before_is_no_fair_probe() -> None:
    circuit, now = half_open()
    circuit.started("r0", now)
    assert not fail(circuit, "r0", now)
    assert state(circuit) is CircuitState.HALF_OPEN
    circuit.started("r0", now)
    assert fail(circuit, "r0", now, Fault.GONE), "that the engine is gone is not the request's doing"


def test_a_slow_probe_lets_the_next_one_go_and_may_still_close_it() -> None:
    circuit, now = half_open()
    circuit.started("slow", now)
    circuit.advance(now + PATIENCE_S)
    assert state(circuit) is CircuitState.HALF_OPEN
    circuit.started("next", now + PATIENCE_S)
    assert state(circuit) is CircuitState.PROBING
    circuit.released("next")
    assert circuit.succeeded("slow", now + 60)
    assert state(circuit) is CircuitState.CLOSED


def test_the_head_of_an_answer_is_enough_where_none_came_before() -> None:
    circuit, now = half_open(fault=Fault.FAILURE)
    circuit.started("probe", now)
    assert circuit.answered("probe", now)
    assert state(circuit) is CircuitState.CLOSED
    circuit, now = half_open(fault=Fault.CUT)
    circuit.started("probe", now)
    assert not circuit.answered("probe", now), "heads came before too"
    assert circuit.succeeded("probe", now)


def test_a_stall_puts_aside_until_anything_succeeds() -> None:
    circuit = Circuit()
    assert fail(circuit, "silent", 0.0, Fault.STALL)
    assert state(circuit) is CircuitState.OPEN
    assert not circuit.succeeded("another", 0.1), "not through a probe: no slow start"
    assert state(circuit) is CircuitState.CLOSED


def test_the_cool_down_can_be_cut_short_but_not_drawn_out() -> None:
    circuit = opened()
    circuit.shorten(0.5)
    assert circuit.until_s == 0.5
    circuit.shorten(50.0)
    assert circuit.until_s == 0.5


steps = st.tuples(
    st.sampled_from(["started", "released", "answered", "succeeded", "failed", "advance", "shorten"]),
    st.integers(0, 5),
    st.sampled_from(Fault),
    st.floats(0, 3),
    st.floats(0, 1),
)


@given(st.lists(steps, max_size=120))
def test_whatever_happens_it_stays_a_circuit(events: list[tuple[str, int, Fault, float, float]]) -> None:
    circuit = Circuit()
    now = 1000.0
    for step, number, fault, passed_s, jitter in events:
        now += passed_s
        request = f"r{number}"
        before = circuit.state
        if step == "failed":
            opens = circuit.failed(request, fault, now, jitter)
            assert opens == (circuit.state is CircuitState.OPEN and before is not CircuitState.OPEN)
            if opens:
                assert now < circuit.until_s <= now + MAX_COOL_DOWN_S
        elif step == "advance":
            circuit.advance(now)
        elif step == "shorten":
            circuit.shorten(now)
        elif step == "released":
            circuit.released(request)
        else:
            getattr(circuit, step)(request, now)
        assert len(circuit._blamed) <= 64
        assert len(circuit.probes) <= 6
        if circuit.state in (CircuitState.OPEN, CircuitState.CLOSED):
            assert not circuit.probes
        if circuit.state is CircuitState.PROBING:
            assert circuit.probes
    now += MAX_COOL_DOWN_S
    circuit.advance(now)
    for number in range(6):
        circuit.released(f"r{number}")
    assert circuit.state in (CircuitState.CLOSED, CircuitState.HALF_OPEN), "it always takes a request again"
    circuit.started("fresh", now)
    circuit.succeeded("fresh", now)
    assert state(circuit) is CircuitState.CLOSED
