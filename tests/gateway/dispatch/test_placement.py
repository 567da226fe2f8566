"""Models loaded when they are asked for, over real sessions joined in memory."""

import pytest

from gateway.dispatch.dispatcher import QueueSettings
from gateway.domain.errors import (
    ModelNotFound,
    NoDeployment,
    QueueFull,
    QueueTimeout,
    RouteNotSupported,
)
from gateway.domain.request import Tier
from gateway.domain.residency import read_where
from gateway.fleet.availability import Availability
from tests.gateway.fleet.fleet import Fleet, deployment
from tests.gateway.scheduling.placement.loadable import (
    LOAD,
    LOADABLE,
    LOADED,
    LOADING,
    UNLOAD,
    LoadingAgent,
    finish,
    fleet_of,
    loadable,
    note,
    sample,
)


def test_a_model_is_loaded_when_it_is_asked_for_and_the_request_is_held_meanwhile() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m"))
    assert agent.commands == []
    client = fleet.submit()
    assert agent.commands == [(LOAD, "m")]
    agent.loaded("m", after_s=18.0)
    assert agent.streams == 1
    finish(agent)
    assert client.response.status == 200
    assert client.response.queue_s == pytest.approx(18.0)
    assert agent.commands == [(LOAD, "m")]


def test_a_loadable_model_is_listed_and_not_ready() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m", routes=("chat",)), loadable("secret"), models=("m",))
    (model,) = fleet.registry.models()
    assert (model.id, model.ready, model.loadable, model.routes) == ("m", False, 1, ("chat",))
    assert fleet.registry.index.availability("m", "chat") is Availability.SERVED
    assert fleet.registry.index.availability("m", "embeddings") is Availability.OTHER_ROUTES
    assert isinstance(fleet.submit(fleet.request("secret")).error, ModelNotFound)
    assert isinstance(fleet.submit(fleet.request(route="rerank")).error, RouteNotSupported)
    assert agent.commands == []


def test_without_placement_a_loadable_model_is_not_served() -> None:
    fleet = Fleet()
    agent = LoadingAgent(fleet, loadable("m"))
    assert fleet.registry.models()[0].loadable == 0
    fleet.advance(6.0)
    assert isinstance(fleet.submit().error, NoDeployment)
    assert agent.commands == []


def test_what_its_agent_does_not_manage_is_not_loadable() -> None:
    fleet = fleet_of()
    agent = fleet.connect("a", deployment("m", status=LOADABLE))
    fleet.advance(6.0)
    client = fleet.submit()
    assert isinstance(client.error, NoDeployment)
    assert client.request.load_note is None
    assert not agent.streams


def test_a_model_is_loaded_only_once_for_all_who_wait() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m", slots=2))
    clients = [fleet.submit() for _ in range(3)]
    fleet.advance(5.0)
    agent.loaded("m")
    assert (agent.streams, agent.commands) == (2, [(LOAD, "m")])
    finish(agent)
    assert agent.streams == 2
    assert not clients[2].settled


def test_another_is_unloaded_first_and_only_when_it_runs_nothing() -> None:
    fleet = fleet_of(min_residence_s=0.0)
    agent = LoadingAgent(fleet, loadable("m", status=LOADED), loadable("n"))
    fleet.submit()
    fleet.advance(3.0)
    waiting = fleet.submit(fleet.request("n", tier=Tier.REALTIME))
    assert agent.commands == []
    late = fleet.submit()
    fleet.advance(1.0)
    assert agent.streams == 1, "it gets nothing new"
    finish(agent)
    fleet.advance(0.2)
    assert agent.commands == [(UNLOAD, "m")]
    agent.unloaded("m")
    fleet.advance(0.2)
    assert agent.commands == [(UNLOAD, "m"), (LOAD, "n")]
    agent.loaded("n", after_s=20.0)
    finish(agent)
    assert waiting.response.status == 200
    assert not late.settled


def test_two_models_take_turns_and_nobody_is_refused() -> None:
    fleet = fleet_of(min_residence_s=5.0)
    agent = LoadingAgent(fleet, loadable("m", load_s=2.0), loadable("n", load_s=2.0))
    clients = [fleet.submit(fleet.request(model)) for model in ("m", "n") * 5]
    for _ in range(120):
        fleet.advance(0.5)
        for model in ("m", "n"):
            state = agent.states[f"d-{model}"]
            if state.status is LOADING:
                agent.loaded(model, after_s=2.0)
            elif state.reason:
                agent.unloaded(model)
        if agent.streams:
            finish(agent)
    assert all(client.response.status == 200 for client in clients)
    assert len(agent.commands) == 3


def test_a_closed_model_is_opened_again_when_nobody_waits_for_the_other_any_more() -> None:
    fleet = fleet_of(min_residence_s=0.0)
    agent = LoadingAgent(fleet, loadable("m", slots=2, status=LOADED), loadable("n"))
    fleet.submit()
    fleet.advance(3.0)
    other = fleet.submit(fleet.request("n", tier=Tier.REALTIME))
    fleet.submit()
    assert agent.streams == 1
    other.cancel()
    fleet.advance(0.5)
    assert agent.streams == 2
    assert agent.commands == []


def test_pinned_models_stay() -> None:
    fleet = fleet_of(min_residence_s=0.0, pinned=("m*",))
    agent = LoadingAgent(fleet, loadable("m", status=LOADED), loadable("n"))
    client = fleet.submit(fleet.request("n"))
    assert isinstance(client.error, NoDeployment)
    assert "more memory" in str(client.error)
    assert agent.commands == []


def test_one_more_is_loaded_elsewhere_when_the_line_is_long() -> None:
    fleet = fleet_of()
    first = LoadingAgent(fleet, loadable("m", status=LOADED, load_s=10.0), name="a")
    second = LoadingAgent(fleet, loadable("m", load_s=10.0), name="b")
    for _ in range(4):
        fleet.submit()
    fleet.advance(1.0)
    assert second.commands == []
    for _ in range(20):
        fleet.submit()
    fleet.advance(1.0)
    assert (first.commands, second.commands) == ([], [(LOAD, "m")])


def test_what_is_loaded_for_others_only_is_loaded_once_more_for_those_it_does_not_suit() -> None:
    fleet = fleet_of()
    there = LoadingAgent(fleet, loadable("m", status=LOADED, version="1"), name="a", labels={"region": "us"})
    here = LoadingAgent(
        fleet, loadable("m", version="1", routes=("chat", "rerank")), name="b", labels={"region": "eu"}
    )
    other = LoadingAgent(fleet, loadable("m", version="2"), name="c", labels={"region": "us"})
    fleet.submit(fleet.request(where=read_where("region=eu")))
    fleet.advance(0.2)
    assert (there.commands, here.commands, other.commands) == ([], [(LOAD, "m")], [])
    fleet.submit(fleet.request(version="2"))
    fleet.advance(0.2)
    assert (there.commands, here.commands, other.commands) == ([], [(LOAD, "m")], [(LOAD, "m")])
    here.loaded("m")
    other.loaded("m")
    assert (there.streams, here.streams, other.streams) == (0, 1, 1)


def test_a_model_that_is_loaded_for_one_route_is_loaded_elsewhere_for_another() -> None:
    fleet = fleet_of()
    chat = LoadingAgent(fleet, loadable("m", status=LOADED), name="a")
    both = LoadingAgent(fleet, loadable("m", routes=("chat", "rerank")), name="b")
    client = fleet.submit(fleet.request(route="rerank"))
    assert (chat.commands, both.commands) == ([], [(LOAD, "m")])
    assert str(note(client)).startswith("loading the model")
    fleet.submit()
    assert chat.streams == 1


def test_a_model_whose_agent_is_lost_is_loaded_at_another() -> None:
    fleet = fleet_of()
    first = LoadingAgent(fleet, loadable("m", status=LOADED), name="a")
    second = LoadingAgent(fleet, loadable("m"), name="b")
    client = fleet.submit()
    fleet.cut(first.agent)
    assert str(note(client)).startswith("loading the model")
    second.loaded("m", after_s=20.0)
    finish(second)
    assert client.response.status == 200


def test_requests_are_held_for_as_long_as_loading_takes_and_no_longer_than_set() -> None:
    fleet = fleet_of(QueueSettings(max_wait_s=10.0), hold_s=100.0)
    agent = LoadingAgent(fleet, loadable("m", load_s=40.0))
    client = fleet.submit()
    fleet.advance(80.0)
    assert not client.settled, "loads may take longer than was said"
    fleet.advance(21.0)
    assert isinstance(client.error, QueueTimeout)
    assert "could not be loaded in time" in client.error.message
    assert agent.states["d-m"].status is LOADING


def test_a_request_that_cannot_wait_for_the_load_is_told_when_to_come_back_and_has_it_loaded() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m", load_s=60.0))
    client = fleet.submit(fleet.request(deadline_s=fleet.loop.now_s + 10.0, streaming=False))
    assert isinstance(client.error, QueueFull)
    assert client.error.retry_after_s == pytest.approx(60.0, abs=5.0)
    assert agent.commands == [(LOAD, "m")]
    agent.loaded("m", after_s=60.0)
    fleet.submit()
    assert agent.streams == 1


def test_who_is_sent_away_while_a_model_loads_is_told_when_it_will_be_loaded() -> None:
    fleet = fleet_of(QueueSettings(max_requests=1))
    LoadingAgent(fleet, loadable("m", load_s=60.0))
    fleet.submit()
    fleet.advance(20.0)
    error = fleet.submit().error
    assert isinstance(error, QueueFull)
    assert error.retry_after_s == pytest.approx(42.0, abs=3.0)


def test_time_without_slots_says_nothing_of_how_fast_the_queue_drains() -> None:
    fleet = fleet_of(QueueSettings(max_wait_s=5.0))
    agent = LoadingAgent(fleet, loadable("m", load_s=100.0, slots=4))
    for _ in range(8):
        fleet.submit()
    fleet.advance(100.0)
    agent.loaded("m")
    assert agent.streams == 4
    assert not fleet.submit().settled


def test_a_request_says_what_it_waits_for() -> None:
    fleet = fleet_of(min_residence_s=0.0)
    agent = LoadingAgent(fleet, loadable("m"), loadable("n", status=LOADED))
    client = fleet.submit()
    assert agent.commands == [(UNLOAD, "n")]
    assert note(client) == "waiting for room to load the model, about 23 s left"
    agent.unloaded("n")
    fleet.advance(0.5)
    fleet.advance(5.0)
    assert note(client) == "loading the model, about 15 s left"
    agent.become("m", LOADING, load_progress=0.75)
    assert note(client) == "loading the model, about 5 s left"
    agent.loaded("m")
    assert note(client) is None


def test_how_long_loading_takes_is_learnt_where_nobody_says() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m", load_s=None))
    client = fleet.submit()
    assert note(client) == "loading the model"
    agent.loaded("m", after_s=12.0)
    finish(agent)
    agent.become("m", LOADABLE)
    again = fleet.submit()
    fleet.advance(0.2)
    assert note(again) == "loading the model, about 12 s left"


def test_requests_for_what_is_loaded_say_nothing_and_are_not_counted_as_held() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m", status=LOADED))
    clients = [fleet.submit(), fleet.submit()]
    assert [note(client) for client in clients] == [None, None]
    assert sample(fleet, "trunkline_requests_held_total", model="m") is None
    agent.become("m", LOADABLE)
    fleet.submit()
    assert sample(fleet, "trunkline_requests_held_total", model="m") == 1


def test_loads_and_unloads_are_counted() -> None:
    fleet = fleet_of()
    agent = LoadingAgent(fleet, loadable("m"))
    fleet.submit()
    agent.loaded("m", after_s=7.0)
    finish(agent)
    agent.unloaded("m")  # by itself, after a while without requests
    assert sample(fleet, "trunkline_model_loads_total", model="m", outcome="loaded") == 1
    assert sample(fleet, "trunkline_model_load_seconds_sum", model="m") == pytest.approx(7.0)
    assert sample(fleet, "trunkline_model_unloads_total", model="m") == 1
    assert sample(fleet, "trunkline_deployments", model="m", state="loadable") == 1
