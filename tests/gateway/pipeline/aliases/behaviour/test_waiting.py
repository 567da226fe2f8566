"""Those who wait for one version of a model while others are served."""

from gateway.domain.errors import NoDeployment
from tests.gateway.fleet.fleet import Client
from tests.gateway.pipeline.aliases.support import Desk, served


def stage() -> tuple[Desk, list[Client], list[Client]]:
    """Two versions with a slot each, a request that runs on each, and one that waits for each."""
    desk = Desk()
    desk.serve(served("m", "v1"), served("m", "v2"))
    first = [desk.fleet.submit(desk.request("m", version="v1")) for _ in range(2)]
    second = [desk.fleet.submit(desk.request("m", version="v2")) for _ in range(2)]
    assert [len(agent.open_streams) for agent in desk.fleet.agents] == [1, 1]
    return desk, first, second


def test_whose_version_has_gone_is_told_after_the_grace_and_the_others_wait_on() -> None:
    desk, first, second = stage()
    fleet = desk.fleet
    fleet.cut(fleet.agents[1])
    fleet.advance(4.0)
    assert not any(each.settled for each in (*first, *second))
    fleet.advance(2.0)
    for each in second:
        assert isinstance(each.error, NoDeployment)
        assert "'v2'" in each.error.message
    assert not any(each.settled for each in first)


def test_whose_version_comes_back_in_time_is_served() -> None:
    desk, _, second = stage()
    fleet = desk.fleet
    fleet.cut(fleet.agents[1])
    fleet.advance(2.0)
    back = fleet.connect("agent-d-m-v2", served("m", "v2", slots=4))
    fleet.advance(1.0)
    assert len(back.open_streams) == len(second)
    fleet.advance(6.0)
    assert not any(each.settled for each in second)


def test_a_version_that_only_rests_or_is_full_is_waited_for() -> None:
    desk, first, second = stage()
    desk.fleet.advance(10.0)
    assert not any(each.settled for each in (*first, *second))
