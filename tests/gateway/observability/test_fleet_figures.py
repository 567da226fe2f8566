"""What is found of the fleet at one scrape, and how unevenly it is used."""

import pytest

from gateway.observability.fleet_figures import FleetFigures, SessionTotals, coefficient_of_variation
from shared.protocol.messages import GpuState
from shared.protocol.session import ProtocolSession
from tests.gateway.fleet.fleet import Fleet, deployment


def test_variation_is_that_of_the_population_as_a_share_of_its_mean() -> None:
    assert coefficient_of_variation([1.0, 0.0]) == 1.0
    assert coefficient_of_variation([0.2, 0.4, 0.6]) == pytest.approx(0.408248, rel=1e-5)
    assert coefficient_of_variation([0.5, 0.5, 0.5]) == 0.0
    assert coefficient_of_variation([0.0, 0.0]) == coefficient_of_variation([]) == 0.0


def test_a_session_that_is_over_keeps_nothing_and_what_it_counted_stays() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m", 1))
    session: ProtocolSession = fleet.session(agent).endpoint.session
    session.log.record_sent([b"four", b"five5"])
    session.log.replayed = 3
    present = SessionTotals()
    present.add(session)
    assert (present.replayed, present.retained_bytes) == (3, present.most_retained_bytes)
    assert present.retained_bytes >= 9
    fleet.cut(agent)
    figures = run(fleet)
    assert (figures.totals.replayed, figures.totals.retained_bytes) == (3, 0)


def run(fleet: Fleet) -> FleetFigures:
    steps = fleet.registry.figures()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: FleetFigures = end.value
            return found


def test_what_agents_say_of_gpus_and_engines_is_added_up_by_model() -> None:
    fleet = Fleet()
    one = fleet.connect("a", deployment("m", 4, running=3, waiting=1, kv_use=0.5))
    fleet.connect("b", deployment("m", 4, running=2, kv_use=0.75))
    gpu = GpuState(0, "NVIDIA H200", 100, 40, 0.75, 61.0, 412.5)
    state = fleet.session(one).reported
    one.endpoint.send_state(type(state)(state.status, state.deployments, (gpu,)))
    fleet.settle()
    figures = run(fleet)
    assert figures.gpus == [("a", gpu)]
    assert (figures.engine_running["m"], figures.engine_waiting["m"]) == (5, 1)
    assert figures.kv_use == {"m": 0.75}
    assert figures.utilisations == {"m": [0.0, 0.0]}
