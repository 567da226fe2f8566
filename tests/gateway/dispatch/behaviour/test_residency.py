"""Where requests may run: whatever happens to them, they go nowhere else."""

from typing import Any

import pytest

from gateway.dispatch import assignment as binding
from gateway.dispatch.dispatcher import DispatchSettings, QueueSettings
from gateway.dispatch.request_heads import DeploymentNotPermitted
from gateway.domain.errors import EngineError, NoDeployment, QueueFull
from gateway.domain.request import AgentPrincipal, Principal, Tier
from gateway.domain.residency import read_where
from shared.protocol.errors import ErrorCode
from shared.protocol.frames import FrameType, encode, encode_offset
from tests.gateway.fleet.fleet import Client, FakeAgent, Fleet, deployment
from tests.gateway.fleet.tunnels import resume, suspend

EU, US = {"region": "eu"}, {"region": "us"}
IN_EU = read_where("region=eu")
GRACE_S = 3.0


def two_regions(eu_slots: int = 1, us_slots: int = 4, **more: Any) -> tuple[Fleet, FakeAgent, FakeAgent]:
    settings = DispatchSettings(reconnect_grace_s=GRACE_S, slow_start_s=0)
    fleet = Fleet(settings=settings, **more)
    eu = fleet.connect("eu", deployment(slots=eu_slots), labels=EU)
    return fleet, eu, fleet.connect("us", deployment(slots=us_slots), labels=US)


def in_eu(fleet: Fleet, **more: Any) -> Client:
    return fleet.submit(fleet.request(where=IN_EU, **more))


def test_a_request_waits_for_where_it_may_run_though_slots_are_free_elsewhere() -> None:
    fleet, eu, us = two_regions()
    first, second = in_eu(fleet), in_eu(fleet)
    fleet.submit()
    assert (len(eu.streams), len(us.streams)) == (1, 1)
    assert not second.settled
    eu.streams[0].stream.reset(ErrorCode.CANCELLED)
    first.cancel()
    fleet.settle()
    assert [each.head.request_id for each in eu.streams] == [first.request.id, second.request.id]
    assert len(us.streams) == 1


def test_a_model_that_is_served_elsewhere_only_is_refused_at_once_and_says_so() -> None:
    fleet = Fleet(settings=DispatchSettings(reconnect_grace_s=GRACE_S))
    us = fleet.connect("us", deployment(), labels=US)
    error = in_eu(fleet).error
    assert isinstance(error, NoDeployment)
    assert (error.status, error.code) == (503, "residency_unavailable")
    assert "region=eu" in error.message
    assert error.retry_after_s
    assert not us.streams


def test_an_agent_without_the_label_is_elsewhere() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment())
    assert isinstance(in_eu(fleet).error, NoDeployment)


def test_who_waits_where_nothing_is_left_is_sent_away_once_the_grace_is_over_and_nobody_else() -> None:
    fleet, eu, us = two_regions(us_slots=1)
    fleet.submit()
    running, here, anywhere = in_eu(fleet), in_eu(fleet), fleet.submit()
    fleet.cut(eu)
    late = in_eu(fleet)
    fleet.advance(GRACE_S - 0.5)
    assert not any(each.settled for each in (running, here, late, anywhere)), "it may be back in a moment"
    fleet.advance(1.0)
    for each in (running, here, late):
        assert isinstance(each.error, NoDeployment)
        assert each.error.code == "residency_unavailable"
    assert not anywhere.settled
    assert len(us.streams) == 1


def test_an_agent_that_is_back_within_the_grace_gets_who_waited_for_it() -> None:
    fleet, eu, _ = two_regions()
    waiting = in_eu(fleet)
    fleet.cut(eu)
    fleet.advance(1.0)
    back = fleet.connect("eu", deployment(), labels=EU)
    fleet.advance(GRACE_S)
    assert not waiting.settled
    assert [each.head.request_id for each in back.streams] == [waiting.request.id]


def test_nobody_fails_over_to_where_it_may_not_run() -> None:
    fleet, eu, us = two_regions(us_slots=9)
    client = in_eu(fleet)
    for _ in range(20):
        for stream in eu.open_streams:
            stream.stream.reset(ErrorCode.ENGINE_FAILED, "broken")
        fleet.advance(1.0)
    assert isinstance(client.error, EngineError)
    assert not us.streams


def test_a_tunnel_that_stays_away_moves_a_request_only_where_it_may_run() -> None:
    fleet, eu, us = two_regions()
    client = in_eu(fleet)
    suspend(fleet, eu)
    fleet.advance(20.0)
    resume(fleet, eu)
    assert not us.streams
    assert not client.settled


def test_a_second_copy_goes_only_where_the_first_may_run() -> None:
    fleet, eu, us = two_regions(eu_slots=2)
    for _ in range(20):
        fleet.dispatcher._answer_times.note("m", "chat", 1.0)
    for _ in range(100):
        fleet.dispatcher._hedges.deposit("tenant")
    in_eu(fleet, streaming=False, tier=Tier.REALTIME)
    fleet.advance(5.0)
    assert not us.streams
    other = fleet.connect("eu-2", deployment(), labels=EU)
    in_eu(fleet, streaming=False, tier=Tier.REALTIME)
    fleet.advance(5.0)
    assert len(eu.streams) + len(other.streams) == 3, "hedged, now that there is another place"
    assert not us.streams


def test_the_wait_predicted_is_that_of_where_the_request_may_run() -> None:
    fleet, _, us = two_regions(us_slots=100, queue=QueueSettings(max_wait_s=5))
    index = fleet.registry.index
    assert index.capacity("m", "chat", 99, IN_EU).slots == 1
    outcomes = [in_eu(fleet) for _ in range(8)]
    assert isinstance(outcomes[-1].error, QueueFull)
    assert not outcomes[0].settled
    assert not us.streams


def test_what_speaks_for_another_place_overrides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a request lost what its key says, and somebody chose wrongly."""
    said: list[Any] = []

    class Log:
        def exception(self, event: str, **_: Any) -> None:
            said.append(event)

    monkeypatch.setattr(binding, "_log", Log())
    fleet = Fleet()
    us = fleet.connect("us", deployment(), labels=US)
    client = fleet.submit(fleet.request(principal=Principal("k", "key", "tenant", IN_EU)))
    assert isinstance(client.error, EngineError)
    assert said == ["dispatch_failed"]
    assert not us.streams
    assert issubclass(DeploymentNotPermitted, Exception)
    fleet.assert_quiet()


def test_labels_are_those_of_the_identity_and_count_anew_when_they_change() -> None:
    fleet, eu, us = two_regions()
    fleet.session(us).allow(AgentPrincipal("us", labels=EU))
    fleet.session(eu).allow(AgentPrincipal("eu", labels=US))
    fleet.settle()
    in_eu(fleet)
    assert (len(eu.streams), len(us.streams)) == (0, 1)


def test_a_round_trip_is_priced_as_it_was_measured_last() -> None:
    fleet, eu, _ = two_regions()
    session = fleet.session(eu)
    (there,) = session.deployments.values()
    assert there.rtt_s == 0.0
    for trip_s, smoothed_s in ((0.2, 0.2), (0.6, 0.3)):
        number = session.endpoint.session.heartbeat.ping(fleet.loop.now_s)
        fleet.loop.advance(trip_s)
        pong = encode(FrameType.PONG, 0, encode_offset(number))
        session.endpoint.session.receive_message(pong, fleet.loop.now_s)
        fleet.settle()
        assert there.rtt_s == pytest.approx(smoothed_s)


def test_slots_there_are_counted_anew_when_anything_about_them_changes() -> None:
    fleet, eu, us = two_regions(eu_slots=2, us_slots=5)
    index, (there,) = fleet.registry.index, fleet.session(eu).deployments.values()

    def counted() -> tuple[int, int, int]:
        of_kind = [(None, "v2"), (IN_EU, None), (IN_EU, "v2")]
        seen = [index.capacity("m", "chat", 1, where, version).slots for where, version in of_kind]
        return seen[0], seen[1], seen[2]

    assert counted() == (0, 2, 0)
    eu.endpoint.send_slots({"d-m": 3})
    fleet.settle()
    assert counted() == (0, 3, 0)
    there.version = "v2"
    index.update(there)
    assert counted() == (3, 3, 3)
    fleet.session(us).allow(AgentPrincipal("us", labels=EU))
    assert counted() == (3, 8, 3)
    fleet.cut(eu)
    assert counted() == (0, 5, 0)
