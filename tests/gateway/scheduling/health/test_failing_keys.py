"""Who is suspected of asking what engines fail on, and for how long."""

from gateway.scheduling.health.circuit import FAILURES_IN_A_ROW, Circuit, CircuitState, Fault
from gateway.scheduling.health.failing_keys import MOST, SERVED_S, SUSPECTED_S, FailingKeys, ServedTenants


def test_a_suspect_is_one_for_a_while_or_until_it_is_cleared() -> None:
    failing = FailingKeys()
    assert not failing.is_failing("k", 0.0)
    failing.add("k", 0.0)
    assert failing.is_failing("k", SUSPECTED_S - 0.1)
    assert not failing.is_failing("k", SUSPECTED_S)
    failing.add("k", 100.0)
    failing.clear("k")
    failing.clear("k")
    assert not failing.is_failing("k", 100.0)


def test_only_so_many_suspects_are_remembered_the_latest() -> None:
    failing = FailingKeys()
    for number in range(MOST + 1):
        failing.add(f"k{number}", 0.0)
        failing.add("k0" if number == 5 else f"k{number}", 0.0)
    assert len(failing) == MOST
    assert failing.is_failing("k0", 0.0)
    assert not failing.is_failing("k1", 0.0)


def test_what_counts_is_who_else_was_served_lately() -> None:
    served = ServedTenants()
    assert not served.served_others("a", 0.0)
    served.note("a", 0.0)
    assert not served.served_others("a", 0.0)
    assert served.served_others("b", SERVED_S - 0.1)
    assert not served.served_others("b", SERVED_S)
    served.note("b", 5.0)
    served.note("b", 8.0)
    assert served.served_others("a", 17.9)
    assert served.served_others("b", 9.9)
    assert not served.served_others("b", 10.0)


def test_a_failure_forgiven_does_not_count() -> None:
    circuit = Circuit()
    for number in range(3 * FAILURES_IN_A_ROW):
        circuit.failed(f"r{number}", Fault.FAILURE, 1.0, 0.0)
        circuit.discard_failure(f"r{number}", 1.0)
        circuit.discard_failure(f"r{number}", 1.0)
    assert circuit.success_probability(1.0) == 1.0
    for number in range(FAILURES_IN_A_ROW):
        assert circuit.failed(f"r{number}", Fault.FAILURE, 1.0, 0.0) is (number == FAILURES_IN_A_ROW - 1)
    circuit.discard_failure("r0", 1.0)
    assert circuit.state is CircuitState.OPEN
