"""Which regions are lost, left alone and coming back, by what their agents do."""

from gateway.scheduling.regions.standing import Standing
from shared.protocol.messages import DeploymentStatus, Drain
from tests.gateway.dispatch.regional_fleet import Regions
from tests.gateway.fleet.fleet import deployment
from tests.gateway.fleet.tunnels import resume, suspend


def test_a_region_that_comes_back_is_left_alone_and_then_gets_more_and_more() -> None:
    regions = Regions(slots=500)
    eu = regions.agents["eu"]
    suspend(regions.fleet, eu)
    regions.fleet.advance(1.0)
    assert regions.standing("eu") is Standing.BLIP
    regions.ask()
    assert regions.went() == ["us"], "nothing waits for a region that is away"
    regions.fleet.advance(5.0)
    assert regions.standing("eu") is Standing.DOWN
    assert dict(regions.gate.figures()[1].values) == {("us", "failed_over"): 1.0}
    resume(regions.fleet, eu)
    regions.fleet.advance(0.5)
    assert regions.standing("eu") is Standing.HELD
    regions.ask()
    assert regions.went() == ["us"] * 2
    regions.fleet.advance(60.0)
    assert regions.standing("eu") is Standing.RETURNING
    shares = []
    for _ in range(3):
        for region in regions.agents:
            regions.end(region)
        for _ in range(100):
            regions.ask()
        shares.append(regions.went().count("eu"))
        regions.fleet.advance(29.0)
    assert shares[0] < 30 < shares[1] < 75 < shares[2]
    regions.fleet.advance(5.0)
    assert regions.standing("eu") is Standing.UP
    states = {labels for labels, value in regions.gate.figures()[0].values.items() if value}
    assert states == {("eu", "up"), ("us", "up")}
    assert regions.gate.figures()[2].values == {("eu",): 1.0}


def test_a_region_whose_models_would_be_loaded_is_not_lost() -> None:
    regions = Regions()
    idle = deployment(slots=1, status=DeploymentStatus.LOADABLE, managed=True)
    regions.agents["eu"].serve(idle)
    regions.fleet.advance(10.0)
    assert regions.standing("eu") is Standing.UP


def test_a_region_whose_child_drains_is_lost() -> None:
    regions = Regions()
    regions.fleet.session(regions.agents["eu"]).on_drain(Drain("restart", 10.0))
    regions.fleet.advance(3.0)
    assert regions.standing("eu") is Standing.DOWN
    regions.ask()
    assert regions.went() == ["us"]


def test_a_blip_costs_a_region_nothing() -> None:
    regions = Regions()
    suspend(regions.fleet, regions.agents["eu"])
    regions.fleet.advance(1.0)
    resume(regions.fleet, regions.agents["eu"])
    regions.fleet.advance(0.5)
    regions.ask()
    assert regions.went() == ["eu"]


def test_it_leaves_no_timer_when_it_is_closed() -> None:
    regions = Regions()
    suspend(regions.fleet, regions.agents["eu"])
    regions.fleet.advance(1.0)
    regions.gate.close()
    before = regions.gate.watch.standings["eu"].standing
    regions.fleet.advance(10.0)
    assert regions.gate.watch.standings["eu"].standing is before
