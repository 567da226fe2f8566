"""A deployment that is suspect elsewhere is probed here, and no hint takes one away."""

from gateway.scheduling.health.failover import Trouble
from gateway.scheduling.health.suspicion import SUSPECT_S, TRUSTED_S
from tests.gateway.fleet.health_site import Site


def test_a_suspect_gets_one_request_at_a_time_until_it_answers() -> None:
    site = Site()
    suspect, other = site.join("a"), site.join("b")
    running = [site.take(suspect) for _ in range(3)]
    site.health.suspect([suspect.key])
    assert (suspect.free, suspect.trial, suspect.shut, other.free) == (1, True, False, 8)
    assert site.value("trunkline_circuits", model="m", state="suspect") == 1
    probe = site.take(suspect)
    assert suspect.free == 0
    site.give_back(suspect, running[0])
    assert suspect.free == 0
    site.health.answered(suspect, probe, site.now)
    assert (suspect.free, suspect.trial) == (5, False), "all of its slots at once, for nothing failed here"
    site.health.suspect([suspect.key])
    assert suspect.free == 5, "what was seen here counts more"
    site.advance(TRUSTED_S)
    site.health.suspect([suspect.key])
    assert suspect.free == 1


def test_an_answer_that_comes_whole_is_enough() -> None:
    site = Site()
    suspect, _ = site.join("a"), site.join("b")
    site.health.suspect([suspect.key])
    site.succeed(suspect)
    assert suspect.free == 8


def test_a_suspect_is_not_suspect_for_long() -> None:
    site = Site()
    suspect, _ = site.join("a"), site.join("b")
    site.health.suspect([suspect.key])
    site.advance(SUSPECT_S)
    assert suspect.free == 8
    assert not site.loop.pending


def test_one_failure_of_a_suspect_opens_its_circuit_and_is_not_told_again() -> None:
    site = Site()
    suspect, well = site.join("a"), site.join("b")
    site.health.suspect([suspect.key])
    site.fail(suspect, Trouble.STATUS)
    site.fail(well, Trouble.STATUS)
    assert (suspect.shut, well.shut) == (True, False)
    assert site.health.hints.told(site.now) == [], "the other gateway has told it"


def test_whose_circuit_opened_here_is_told() -> None:
    site = Site()
    sick, *_ = (site.join(name) for name in "abc")
    site.fail(sick, Trouble.STATUS, 5)
    (hint,) = site.health.hints.told(site.now)
    assert (hint.key, hint.reason) == (sick.key, "status")


def test_a_lost_tunnel_is_this_gateways_own_and_is_not_told() -> None:
    site = Site()
    flapping, _ = site.join("a"), site.join("b")
    for _ in range(5):
        site.fail(flapping, Trouble.LOST)
        site.advance(1.5)
    assert flapping.health is not None
    assert site.value("trunkline_circuits_opened_total", model="m", reason="lost") == 1
    assert site.health.hints.told(site.now) == []


def test_hints_leave_half_of_a_models_deployments_alone() -> None:
    site = Site()
    fleet = [site.join(name) for name in "abcde"]
    site.health.suspect([each.key for each in fleet])
    assert [each.trial for each in fleet] == [True, True, False, False, False]
    assert not any(each.shut for each in fleet)


def test_the_only_deployment_of_a_model_is_never_suspect() -> None:
    site = Site()
    only = site.join("a")
    site.health.suspect([only.key, "nowhere/d"])
    assert only.free == 8


def test_one_that_is_not_well_anyway_is_left_to_its_circuit() -> None:
    site = Site()
    sick, *_ = (site.join(name) for name in "abcd")
    site.fail(sick, Trouble.STATUS, 5)
    site.health.suspect([sick.key])
    site.advance(1.0)
    probe = site.take(sick)
    site.health.answered(sick, probe, site.now)
    assert sick.free == 1, "slow start, as ever"
