"""Who may be tried again or twice, who is waited for, and what is known before agents are there."""

import pytest

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.dispatcher import DispatchSettings
from gateway.dispatch.exchange import RequestExchange
from gateway.dispatch.request_heads import head_for
from gateway.domain.errors import ModelNotFound, NoDeployment, RouteNotSupported
from gateway.domain.request import Principal, Tier
from gateway.fleet.deployment import Deployment
from gateway.scheduling.health.failover import Trouble
from shared.protocol.messages import DeploymentState
from tests.gateway.fleet.fleet import Fleet, deployment

# --- Retries ---


def test_retries_after_failures_are_bounded_by_the_budget() -> None:
    fleet = Fleet()
    request = fleet.request()
    fleet.metrics.know_model("m")
    allowed = sum(fleet.dispatcher.may_retry(request, Trouble.STATUS) for _ in range(500))
    assert allowed == 100, "ten a second for ten seconds"
    refused = fleet.metrics.registry.get_sample_value(
        "trunkline_retry_budget_exhausted_total", {"model": "m"}
    )
    assert refused == 400
    fleet.advance(11.0)
    assert fleet.dispatcher.may_retry(request, Trouble.STATUS)


@pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.LOST, Trouble.DRAINING])
def test_what_no_engine_failed_at_costs_no_budget(trouble: Trouble) -> None:
    fleet = Fleet()
    request = fleet.request()
    assert all(fleet.dispatcher.may_retry(request, trouble) for _ in range(500))
    assert fleet.dispatcher.may_retry(request, Trouble.TIMEOUT)


def test_one_tenants_bad_requests_use_up_nobody_elses_retries() -> None:
    fleet = Fleet()
    bad = fleet.request(principal=Principal("k-bad", "bad", "careless"))
    while fleet.dispatcher.may_retry(bad, Trouble.STATUS):
        pass
    assert fleet.dispatcher.may_retry(fleet.request(), Trouble.STATUS)


def test_a_site_with_many_requests_may_retry_a_fifth_of_them() -> None:
    fleet = Fleet(settings=DispatchSettings(retry_share=0.2))
    fleet.connect("a", deployment(slots=0))
    for _ in range(1000):
        fleet.submit()
    request = fleet.request()
    assert sum(fleet.dispatcher.may_retry(request, Trouble.BROKEN) for _ in range(900)) == 300


# --- Somewhere else ---


def continuing_deployment(version: str, *ways: str) -> DeploymentState:
    return DeploymentState(
        "d-m", "m", version, routes=("chat",), slots=1, continues=dict.fromkeys(ways, "prompt")
    )


def test_somewhere_else_is_where_version_and_ability_are_and_the_tunnel_is() -> None:
    fleet = Fleet()
    fleet.connect("a", continuing_deployment("v1", "chat"))
    fleet.connect("b", continuing_deployment("v2", "chat"))
    unable = fleet.connect("c", continuing_deployment("v1"))
    request = fleet.request()
    request.attempts.append("a/d-m")
    dispatcher = fleet.dispatcher
    assert dispatcher.someone_else(request)
    request.version = "v1"
    assert dispatcher.someone_else(request)
    fleet.session(unable).on_session_suspended(None)
    assert not dispatcher.someone_else(request)
    fleet.session(unable).on_session_resumed()
    request.continuing = True
    assert not dispatcher.someone_else(request)
    fleet.connect("d", continuing_deployment("v1", "chat"))
    assert dispatcher.someone_else(request)


def test_an_answer_that_has_begun_waits_for_one_that_can_go_on_with_it() -> None:
    fleet = Fleet()
    wrong = fleet.connect("a", continuing_deployment("v2", "chat"))
    request = fleet.request()
    request.version, request.continuing = "v1", True
    fleet.submit(request)
    assert not wrong.streams
    right = fleet.connect("b", continuing_deployment("v1", "chat"))
    assert len(right.streams) == 1


# --- Second copies ---


def hedging(answers: int = 20) -> Fleet:
    """A fleet that knows how long answers take; each tenant has one copy to begin with."""
    fleet = Fleet()
    fleet.connect("a", deployment(slots=1))
    fleet.connect("b", deployment(slots=1))
    for _ in range(answers):
        fleet.dispatcher._answer_times.note("m", "chat", 2.0)
    return fleet


def test_realtime_answers_in_one_piece_are_hedged_past_their_95th_percentile() -> None:
    fleet = hedging()
    now = fleet.loop.now_s
    urgent = fleet.request(streaming=False, tier=Tier.REALTIME)
    assert fleet.dispatcher.hedge_at(urgent, now) == now + 2.0
    for other in (
        fleet.request(streaming=True, tier=Tier.REALTIME),
        fleet.request(streaming=False, tier=Tier.STANDARD),
        fleet.request(streaming=False, tier=Tier.REALTIME, route="any"),
    ):
        assert fleet.dispatcher.hedge_at(other, now) is None


def hedge(fleet: Fleet, exchange: RequestExchange) -> Deployment | None:
    """Where a second copy of its request goes now."""
    return fleet.dispatcher.hedge(exchange.ticket, fleet.loop.now_s)


def test_where_little_is_known_of_answers_a_long_silence_is_late() -> None:
    fleet = hedging(answers=19)
    urgent = fleet.request(streaming=False, tier=Tier.REALTIME)
    assert fleet.dispatcher.hedge_at(urgent, 5.0) == 5.0 + fleet.dispatcher.settings.stall_s


def test_a_second_copy_goes_elsewhere_once_and_within_its_budget() -> None:
    fleet = hedging()
    client = fleet.submit(fleet.request(streaming=False, tier=Tier.REALTIME))
    assert client.exchange is not None
    chosen = hedge(fleet, client.exchange)
    assert chosen is not None
    assert [chosen.key] == [key for key in ("a/d-m", "b/d-m") if key not in client.request.attempts]
    assert hedge(fleet, client.exchange) is None, "the budget is spent"


def test_a_second_copy_takes_a_slot_and_gives_it_back() -> None:
    fleet = hedging()
    client = fleet.submit(fleet.request(streaming=False, tier=Tier.REALTIME))
    exchange = client.exchange
    assert exchange is not None
    now = fleet.loop.now_s
    chosen = hedge(fleet, exchange)
    assert chosen is not None
    copy = Attempt(exchange, chosen, head_for(exchange.request, chosen, now), exchange.ticket.work, now)
    fleet.dispatcher.taken(exchange.ticket, copy)
    assert (chosen.in_flight, chosen.free) == (1, 0)
    fleet.dispatcher.released(copy)
    assert (chosen.in_flight, chosen.free) == (0, 1)


def test_no_second_copy_where_there_is_no_room_or_it_is_not_well() -> None:
    fleet = hedging()
    client = fleet.submit(fleet.request(streaming=False, tier=Tier.REALTIME))
    other = fleet.submit()
    assert client.exchange is not None
    assert other.exchange is not None
    assert hedge(fleet, client.exchange) is None
    fleet = hedging()
    client = fleet.submit(fleet.request(streaming=False, tier=Tier.REALTIME))
    assert client.exchange is not None
    (free,) = fleet.registry.index.open("m").values()
    assert free.health is not None
    fleet.dispatcher.health.failed(free, fleet.request(), Trouble.UNREACHABLE, fleet.loop.now_s)
    fleet.advance(0.6)
    assert free.free == 1
    assert hedge(fleet, client.exchange) is None, "on probation"


# --- Waiting for who may be back ---


def test_requests_wait_for_a_suspended_session_until_it_is_given_up() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment())
    fleet.session(agent).on_session_suspended(None)
    waiting, later = fleet.submit(), None
    fleet.advance(20.0)
    later = fleet.submit()
    assert not waiting.settled
    assert not later.settled
    assert not agent.streams
    fleet.session(agent).on_session_resumed()
    fleet.settle()
    assert len(agent.streams) == 1
    fleet.session(agent).on_session_suspended(None)
    fleet.cut(agent)
    fleet.advance(5.0)
    assert isinstance(later.error, NoDeployment)


def test_a_model_known_from_before_a_restart_is_waited_for() -> None:
    fleet = Fleet(settings=DispatchSettings(reconnect_grace_s=5))
    fleet.registry.index.learn("m", 1.0)
    early = fleet.submit()
    assert isinstance(fleet.submit(fleet.request("never")).error, ModelNotFound)
    fleet.advance(2.0)
    agent = fleet.connect("a", deployment())
    assert len(agent.streams) == 1
    assert not early.settled


def test_time_in_which_the_gateway_stood_still_is_not_counted_as_waiting() -> None:
    fleet = Fleet(settings=DispatchSettings(reconnect_grace_s=5))
    fleet.registry.index.learn("m", 1.0)
    paused_s = 0.0
    fleet.dispatcher.admission.stood_still = lambda since, now: paused_s
    early = fleet.submit()
    paused_s = 4.0
    fleet.advance(5.0)
    late = fleet.submit()
    assert not early.settled
    assert not late.settled
    fleet.advance(3.9)
    assert not early.settled
    fleet.advance(0.2)
    assert isinstance(early.error, NoDeployment)
    assert isinstance(late.error, NoDeployment)
    assert isinstance(fleet.submit().error, NoDeployment)


def test_a_model_known_from_before_a_restart_that_nobody_brings_is_given_up() -> None:
    fleet = Fleet(settings=DispatchSettings(reconnect_grace_s=5))
    fleet.registry.index.learn("m", 1.0)
    early = fleet.submit()
    fleet.advance(5.0)
    assert isinstance(early.error, NoDeployment)
    assert isinstance(fleet.submit().error, NoDeployment)


def test_a_route_whose_only_deployment_has_just_gone_is_waited_for() -> None:
    fleet = Fleet(settings=DispatchSettings(reconnect_grace_s=5))
    fleet.connect("a", deployment())
    both = fleet.connect("b", deployment(routes=("chat", "messages")))
    fleet.cut(both)
    early, late = (fleet.submit(fleet.request(route="messages")) for _ in range(2))
    fleet.advance(2.0)
    back = fleet.connect("b", deployment(routes=("chat", "messages")))
    assert len(back.streams) == 1
    fleet.cut(back)
    fleet.advance(5.0)
    assert isinstance(late.error, RouteNotSupported)
    assert isinstance(fleet.submit(fleet.request(route="messages")).error, RouteNotSupported)
    assert early.settled


def test_a_route_is_waited_for_whose_deployments_are_not_all_back_after_a_restart() -> None:
    fleet = Fleet(settings=DispatchSettings(reconnect_grace_s=5))
    fleet.registry.index.learn("m", 1.0, lately=True)
    fleet.connect("a", deployment())
    waiting = fleet.submit(fleet.request(route="messages"))
    fleet.advance(2.0)
    assert not waiting.settled
    both = fleet.connect("b", deployment(routes=("chat", "messages")))
    assert len(both.streams) == 1


def test_a_route_that_nothing_ever_had_is_told_at_once() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment())
    assert isinstance(fleet.submit(fleet.request(route="messages")).error, RouteNotSupported)
