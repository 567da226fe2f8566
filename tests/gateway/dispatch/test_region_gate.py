"""Which regions requests get, by what is measured, set and lost; over real sessions joined in memory."""

from dataclasses import replace
from math import inf

import pytest

from gateway.dispatch.decisions.description import describe
from gateway.domain.errors import NoDeployment
from gateway.domain.request import Principal
from gateway.domain.residency import read_where
from gateway.scheduling import POLICIES
from gateway.scheduling.regions.settings import RegionSettings, TrafficShift
from gateway.scheduling.regions.standing import Standing
from tests.gateway.dispatch.decisions.test_description import kept
from tests.gateway.dispatch.regional_fleet import GRACE_S, PRICED, Regions
from tests.gateway.fleet.fleet import Fleet, deployment
from tests.gateway.fleet.tunnels import suspend


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_nearest_is_taken_while_it_has_room_whatever_the_policy(policy: str) -> None:
    regions = Regions(RegionSettings(), slots=3, policy=policy, us=0.09, eu=0.01)
    for _ in range(3):
        regions.ask()
    assert regions.went() == ["eu"] * 3


def test_the_next_is_taken_once_waiting_is_worth_the_price() -> None:
    regions = Regions()
    regions.ask()
    regions.ask()
    assert regions.went() == ["eu"]
    regions.fleet.advance(4.9)
    assert regions.went() == ["eu"]
    regions.fleet.advance(0.3)
    assert regions.went() == ["eu", "us"]
    assert dict(regions.gate.figures()[1].values) == {("eu", "nearest"): 1.0, ("us", "spilled_over"): 1.0}


def test_who_waits_gets_the_nearest_if_that_has_room_before() -> None:
    regions = Regions()
    regions.ask()
    regions.ask()
    regions.fleet.advance(2.0)
    regions.end("eu")
    regions.fleet.advance(10.0)
    assert regions.went() == ["eu"]


def test_a_price_of_infinity_is_never_paid_and_who_would_have_to_is_refused_clearly() -> None:
    regions = Regions(RegionSettings(home="eu", prices={"us": inf}))
    regions.ask()
    waiting = regions.ask()
    regions.fleet.advance(30.0)
    assert regions.went() == ["eu"]
    regions.fleet.cut(regions.agents["eu"])
    regions.fleet.advance(GRACE_S + 1.0)
    error = waiting.error
    assert isinstance(error, NoDeployment)
    assert (error.status, error.code) == (503, "residency_unavailable")
    assert "region!=us" in error.message
    assert isinstance(regions.ask().error, NoDeployment)
    regions.ask(where=read_where("region=us"))
    assert len(regions.agents["us"].open_streams) == 1, "who asks for it by name gets it"
    assert regions.agents["us"].streams[0].head.where is None, "the agent is no gateway"


def test_who_is_bound_to_a_region_neither_spills_over_nor_fails_over() -> None:
    regions = Regions(slots=1)
    bound = [regions.ask(where=read_where("region=eu")) for _ in range(2)]
    regions.fleet.advance(20.0)
    assert regions.went() == ["eu"]
    regions.fleet.cut(regions.agents["eu"])
    regions.fleet.advance(GRACE_S + 1.0)
    for each in bound:
        assert isinstance(each.error, NoDeployment)
        assert each.error.code == "residency_unavailable"
    assert not regions.agents["us"].streams
    regions.come("eu")
    regions.fleet.advance(1.0)
    assert regions.standing("eu") is Standing.HELD
    regions.ask(where=read_where("region=eu"))
    assert regions.went() == ["eu"], "it is left alone by those who may go elsewhere"


def test_a_share_of_a_tenants_requests_is_moved_and_comes_back_when_there_is_no_room() -> None:
    settings = replace(PRICED, shifts=(TrafficShift("us", 0.3, tenant="acme"),))
    regions = Regions(settings, slots=300)
    acme = Principal("k2", "key", "acme")
    for _ in range(200):
        regions.ask(principal=acme)
        regions.ask()
    assert 40 <= regions.went().count("us") <= 80
    assert {each.head.request_id for each in regions.agents["us"].streams}


def test_a_session_is_moved_whole_or_not_at_all() -> None:
    regions = Regions(replace(PRICED, shifts=(TrafficShift("us", 0.5),)), slots=300)
    for session in range(20):
        before = regions.went().count("us")
        for _ in range(5):
            regions.ask(session_key=f"s{session}")
        assert regions.went().count("us") - before in (0, 5)


def test_a_shift_is_taken_up_while_requests_wait() -> None:
    regions = Regions()
    regions.ask()
    regions.ask()
    assert regions.went() == ["eu"]
    regions.gate.retune(replace(PRICED, shifts=(TrafficShift("us", 1.0),)))
    regions.fleet.settle()
    assert regions.went() == ["eu", "us"]


def test_a_pilot_light_waits_until_the_others_are_full_or_gone() -> None:
    regions = Regions(RegionSettings(pilot=frozenset({"dr"}), pilot_wait_s=1.0), dr=0.0, eu=0.05)
    regions.ask()
    assert regions.went() == ["eu"]
    regions.ask()
    regions.fleet.advance(0.9)
    assert regions.went() == ["eu"]
    regions.fleet.advance(0.3)
    assert regions.went() == ["dr", "eu"]
    regions.end("dr")
    suspend(regions.fleet, regions.agents["eu"])
    regions.ask()
    assert regions.went() == ["dr", "eu"], "at once, where nothing else is there"


def test_records_say_why_a_region_was_taken_and_why_not() -> None:
    regions = Regions()
    first, second = regions.ask(), regions.ask()
    found = describe(kept(first.request), "p", 5.0)
    (decision,) = found["decisions"]
    assert decision["region"] == {
        "name": "eu",
        "code": "nearest",
        "words": "it is the nearest, or costs least",
    }
    excluded = {each["deployment"]: each["excluded"] for each in decision["candidates"]}
    assert excluded["us/d-m"]["code"] == "region_dearer"
    assert "The region eu was taken: it is the nearest, or costs least." in found["words"]
    assert any("waiting at a nearer one cost less" in line for line in found["words"])
    regions.fleet.advance(6.0)
    (decision,) = describe(kept(second.request), "p", 5.0)["decisions"]
    assert (decision["region"]["name"], decision["region"]["code"]) == ("us", "spilled_over")


def test_a_late_copy_stays_where_the_request_may_go() -> None:
    regions = Regions(RegionSettings(home="eu", prices={"us": 50.0}))
    client = regions.ask()
    assert client.exchange is not None
    regions.fleet.dispatcher._hedges.deposit("tenant")
    assert regions.fleet.dispatcher.hedge(client.exchange.ticket, regions.fleet.loop.now_s) is None


def test_agents_without_the_label_are_at_home() -> None:
    regions = Regions(slots=1)
    regions.fleet.connect("here", deployment(slots=1))
    regions.fleet.advance(1.0)
    regions.ask()
    regions.ask()
    assert regions.went() == ["eu"]
    assert len(regions.fleet.agents[-1].open_streams) == 1


def test_a_child_that_does_not_say_where_it_is_is_not_taken_for_home() -> None:
    """A child of an earlier version whose token allows several values has none of them."""
    regions = Regions(RegionSettings(home="eu", price_s=5.0), eu=0.0)
    fleet = regions.fleet
    fleet.registry.gateway_id = lambda: "0123456789abcdef"
    child = fleet.connect("child", labels={"region": "us,ap"})
    fleet.session(child).is_gateway = True
    child.serve(deployment(slots=4))
    fleet.advance(1.0)
    (view,) = fleet.session(child).deployments.values()
    assert (view.labels, regions.gate.region_of(view)) == ({}, "")
    regions.ask()
    regions.ask()
    assert (len(regions.agents["eu"].open_streams), len(child.open_streams)) == (1, 0)
    fleet.advance(6.0)
    assert len(child.open_streams) == 1
    assert child.open_streams[0].head.where is None


def test_without_regions_nothing_is_asked() -> None:
    fleet = Fleet()
    fleet.connect("us", deployment(), labels={"region": "us"})
    fleet.submit()
    assert fleet.dispatcher.regions is None
    assert fleet.dispatcher.admission.constrained is None
    decisions = fleet.dispatcher.exchanges
    assert len(decisions) == 1
