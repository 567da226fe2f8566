"""What becomes of requests changes how much deployments may take; time gives it back."""

import pytest

from gateway.fleet.health import PANIC_S
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.health.circuit import MAX_COOL_DOWN_S
from gateway.scheduling.health.failover import Trouble
from gateway.scheduling.recent import WINDOW_S
from shared.protocol.messages import DeploymentStatus
from tests.gateway.fleet.health_site import Site


def test_failures_in_a_row_close_the_way_and_a_probe_opens_it_slowly() -> None:
    site = Site()
    sick, well = site.join("a"), site.join("b")
    site.fail(sick, Trouble.STATUS, 5)
    assert (sick.free, sick.shut, well.free) == (0, True, 8)
    assert site.index.capacity("m", "chat", 99).slots == 8
    assert not site.index.someone_else("m", DeploymentConstraints("chat", frozenset({"b/d"})))
    assert site.value("trunkline_circuits", model="m", state="open") == 1
    assert site.value("trunkline_circuits_opened_total", model="m", reason="status") == 1
    site.advance(1.0)
    assert (sick.free, sick.shut, sick.trial) == (1, False, True)
    assert site.index.capacity("m", "chat", 99).slots == 8, "nobody counts on it yet"
    assert site.index.someone_else("m", DeploymentConstraints("chat", frozenset({"b/d"})))
    probe = site.take(sick)
    assert sick.free == 0
    site.health.answered(sick, probe, site.now)
    assert sick.free == 1, "a quarter of its slots, one of them in use"
    site.give_back(sick, probe)
    assert sick.free == 2
    site.advance(15.0)
    assert sick.free == 5
    site.advance(15.0)
    assert sick.free == 8
    assert not site.loop.pending
    assert site.value("trunkline_circuits", model="m", state="closed") == 2


@pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.OVERLOADED])
def test_a_full_engine_is_left_alone_for_a_moment_and_its_circuit_stays_closed(trouble: Trouble) -> None:
    site = Site()
    full, _ = site.join("a"), site.join("b")
    for _ in range(20):
        site.fail(full, trouble)
        assert full.free == 0
        assert site.index.someone_else("m", DeploymentConstraints("chat", frozenset({"b/d"}))), (
            "it will be back in a moment"
        )
        site.advance(5.1)
        assert full.free == 8
    assert site.value("trunkline_circuits", model="m", state="open") is None


@pytest.mark.parametrize("trouble", [Trouble.DRAINING])
def test_an_agent_that_leaves_in_order_has_done_nothing_wrong(trouble: Trouble) -> None:
    site = Site()
    deployment = site.join("a")
    site.fail(deployment, trouble, 50)
    assert deployment.free == 8


def test_what_ends_on_an_old_session_counts_for_the_new_one() -> None:
    site = Site()
    old, _ = site.join("a"), site.join("b")
    request = site.take(old)
    site.leave(old)
    new = site.join("a")
    site.health.failed(old, request, Trouble.STALLED, site.now)
    assert (new.free, new.shut) == (0, True)
    site.give_back(old, request)
    site.advance(1.0)
    assert new.free == 1


def test_many_requests_lost_with_one_session_are_one_failure() -> None:
    site = Site()
    flapping, _ = site.join("a"), site.join("b")
    for _ in range(4):
        site.fail(flapping, Trouble.LOST, 20)
        site.leave(flapping)
        site.advance(2.0)
        flapping = site.join("a")
        assert flapping.free == 8, "it is not new, and not yet suspicious"
    site.fail(flapping, Trouble.LOST)
    site.leave(flapping)
    flapping = site.join("a")
    assert (flapping.free, flapping.shut) == (0, True), "it does not come back innocent"


def test_one_that_fails_now_and_then_looks_slower_until_that_is_forgotten() -> None:
    site = Site()
    one = site.join("a")
    site.succeed(one)
    assert one.health_factor == 1.0
    site.fail(one, Trouble.STATUS)
    assert one.health_factor == pytest.approx(2 / 3)
    site.succeed(one)
    site.succeed(one)
    assert one.health_factor == pytest.approx(4 / 5)
    site.advance(WINDOW_S + 1.0)
    site.succeed(one)
    assert one.health_factor == 1.0


def test_one_request_opens_no_circuits_however_often_it_fails() -> None:
    site = Site()
    fleet = [site.join(name) for name in "abcdef"]
    poison = site.request()
    for _ in range(10):
        for each in fleet:
            site.fail(each, Trouble.STATUS, request=poison)
            site.fail(each, Trouble.BROKEN, request=poison)
    assert not any(each.shut for each in fleet)


def test_when_nobody_is_well_somebody_is_tried_every_second() -> None:
    site = Site()
    fleet = [site.join(name) for name in "abc"]
    for each in fleet:
        site.fail(each, Trouble.UNREACHABLE)
    for _ in range(12):  # cool-downs would be a minute by now
        site.advance(PANIC_S)
        tried = [each for each in fleet if each.free]
        assert tried
        for each in tried:
            assert each.free == 1
            site.fail(each, Trouble.UNREACHABLE)
    one = fleet[0]
    others_due_s = [
        each.health.circuit.until_s - site.now for each in fleet if each.health and each is not one
    ]
    assert max(others_due_s) <= MAX_COOL_DOWN_S


def test_with_somebody_well_cool_downs_are_kept() -> None:
    site = Site()
    sick, _ = site.join("a"), site.join("b")
    for cool_down_s in (0.5, 1.0, 2.0, 4.0):
        site.fail(sick, Trouble.UNREACHABLE)
        site.advance(cool_down_s - 0.01)
        assert sick.free == 0
        site.advance(0.02)
        assert sick.free == 1


def test_when_the_last_well_one_leaves_somebody_is_tried_soon() -> None:
    site = Site()
    sick, well = site.join("a"), site.join("b")
    for _ in range(8):
        site.fail(sick, Trouble.UNREACHABLE)
        site.advance(64.0)
    site.fail(sick, Trouble.UNREACHABLE)
    site.advance(5.0)
    assert sick.free == 0
    well.session.suspended = True
    site.index.update(well)
    site.advance(PANIC_S)
    assert sick.free == 1


def test_a_deployment_that_stalled_is_put_aside_until_something_succeeds_there() -> None:
    site = Site()
    deployment, _ = site.join("a"), site.join("b")
    slow = site.take(deployment)
    site.fail(deployment, Trouble.STALLED)
    assert deployment.free == 0
    site.health.succeeded(deployment, slow, 0.1, 3.0, 100, site.now)
    assert deployment.free == 7, "at once, with all its slots"


def test_a_new_deployment_starts_slowly_beside_established_ones_only() -> None:
    site = Site()
    first, second = site.join("a"), site.join("b")
    assert first.free == second.free == 8, "a gateway that just started does not know who is new"
    site.advance(31.0)
    late = site.join("c")
    assert late.free == 2
    site.advance(10.0)
    assert late.free == 4
    assert site.index.capacity("m", "chat", 99).slots == 20


def test_one_that_reconnects_is_not_new() -> None:
    site = Site()
    one, _ = site.join("a"), site.join("b")
    site.advance(31.0)
    site.leave(one)
    site.advance(60.0)
    assert site.join("a").free == 8
    one.session.suspended = True
    site.index.update(one)
    assert one.free == 0


def test_one_that_loads_is_new_when_it_has_loaded() -> None:
    site = Site()
    site.join("a")
    site.advance(31.0)
    loading = site.join("b", status=DeploymentStatus.LOADING)
    site.advance(31.0)
    loading.status = DeploymentStatus.LOADED
    site.index.update(loading)
    assert loading.free == 2


def test_one_far_slower_than_its_peers_is_set_aside_and_comes_back_slowly() -> None:
    site = Site()
    fleet = [site.join(name, device="H100") for name in "abcd"]
    for _ in range(10):
        for each in fleet:
            site.succeed(each, first_byte_s=5.0 if each is fleet[2] else 0.2)
    site.advance(1.1)
    site.succeed(fleet[0])
    assert [each.shut for each in fleet] == [False, False, True, False]
    assert site.value("trunkline_circuits", model="m", state="ejected") == 1
    assert site.value("trunkline_deployments_ejected_total", model="m") == 1
    assert [hint.reason for hint in site.health.hints.told(site.now)] == ["slow"]
    site.advance(30.0)
    assert fleet[2].free == 2
    site.advance(30.0)
    assert fleet[2].free == 8


def test_at_most_a_third_is_set_aside_and_devices_are_not_mixed() -> None:
    site = Site()
    fleet = [site.join(f"a{number}", device="H100") for number in range(7)]
    for _ in range(10):
        for number, each in enumerate(fleet):
            site.succeed(each, first_byte_s=(9.0, 8.0, 7.0, 0.2, 0.2, 0.2, 0.2)[number])
    site.advance(1.1)
    site.succeed(fleet[6])
    assert [each.shut for each in fleet] == [True, True] + [False] * 5
    site = Site()
    fast = [site.join(f"a{number}", device="H100") for number in range(4)]
    slow = site.join("b", device="T4")
    for _ in range(10):
        for each in fast:
            site.succeed(each)
        site.succeed(slow, first_byte_s=9.0)
    site.advance(1.1)
    site.succeed(slow, first_byte_s=9.0)
    assert not slow.shut


def test_where_nobody_knows_the_device_only_who_has_become_far_slower_is_set_aside() -> None:
    site = Site()
    fleet = [site.join(name) for name in "abcd"]
    for _ in range(40):
        for each in fleet:
            site.succeed(each, first_byte_s=5.0 if each is fleet[2] else 0.2)
    site.advance(1.1)
    site.succeed(fleet[0])
    assert not any(each.shut for each in fleet), "it has always been slow"
    for _ in range(40):
        site.succeed(fleet[1], first_byte_s=5.0)
    site.advance(1.1)
    site.succeed(fleet[0])
    assert [each.shut for each in fleet] == [False, True, False, False]


def test_a_probe_whose_client_leaves_lets_the_next_one_go() -> None:
    site = Site()
    sick, _ = site.join("a"), site.join("b")
    site.fail(sick, Trouble.UNREACHABLE)
    site.advance(0.5)
    probe = site.take(sick)
    assert sick.free == 0
    site.give_back(sick, probe)
    assert sick.free == 1


def test_nothing_is_left_behind_when_it_is_closed() -> None:
    site = Site()
    sick = site.join("a")
    site.fail(sick, Trouble.STATUS, 5)
    assert site.loop.pending
    site.health.close()
    assert not site.loop.pending
