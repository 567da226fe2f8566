"""The registry: what agents claim, what is believed, who replaces whom."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from gateway.domain.request import AgentPrincipal
from gateway.domain.slices import run_at_once
from gateway.fleet.availability import Availability
from gateway.fleet.registry import RegistrySettings
from shared.protocol import limits
from shared.protocol.errors import ControlFrameFlood, ErrorCode, HandshakeRejected, TunnelClosed
from shared.protocol.frames import FrameType, encode
from shared.protocol.messages import AgentState, AgentStatus, DeploymentStatus, Drain, ResponseHead
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment


def sample(fleet: Fleet, name: str, **labels: str) -> float | None:
    return fleet.metrics.registry.get_sample_value(name, labels)


def test_a_model_is_ready_when_a_loaded_deployment_has_slots() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m", 2, routes=("chat", "completions")))
    (model,) = fleet.registry.models()
    assert (model.id, model.ready, model.deployments) == ("m", True, 1)
    assert (model.created_s, model.owned_by) == (1_700_000_000, "trunkline")
    assert model.routes == ("chat", "completions")
    agent.endpoint.send_slots({"d-m": 0})
    fleet.settle()
    assert not fleet.registry.models()[0].ready


def test_a_model_has_what_its_engines_say_of_it_and_is_translated_where_all_of_them_have_to() -> None:
    fleet = Fleet()
    both = ("chat", "messages", "responses")
    chat_only = deployment("m", 2, routes=both, translated=("messages", "responses"), capabilities=("tools",))
    one = fleet.connect("a", replace(chat_only, context_tokens=4096))
    two = deployment("m", 2, routes=both, translated=("messages",), capabilities=("vision", "tools"))
    (model,) = fleet.registry.models()
    assert (model.context_tokens, model.translated) == (4096, ("messages", "responses"))
    fleet.connect("b", replace(two, context_tokens=8192))
    (model,) = fleet.registry.models()
    assert (model.context_tokens, model.translated) == (8192, ("messages",))
    assert model.capabilities == ("tools", "vision")
    one.serve(replace(chat_only, translated=()))
    fleet.settle()
    assert fleet.registry.models()[0].translated == ()


def test_the_only_model_of_servers_with_one_model_is_found() -> None:
    fleet = Fleet()
    only = fleet.registry.index.only_model
    fleet.connect("a", deployment("any", 2, routes=("chat", "generate")))  # of an engine of unknown kind
    assert only("generate", None) is None
    fleet.connect("b", deployment("llama", 2, routes=("chat", "generate"), kind="tgi"))
    assert (only("generate", None), only("infer", None)) == ("llama", None)
    fleet.connect("c", deployment("gemma", 2, routes=("generate",), kind="sglang"))
    assert only("generate", None) is None
    assert only("generate", lambda model: model == "gemma") == "gemma"
    assert only("generate", lambda model: False) is None


def test_models_stay_known_when_their_agents_have_gone() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m"))
    fleet.cut(agent)
    model = fleet.registry.model("m")
    assert model is not None
    assert (model.ready, model.deployments, model.routes) == (False, 0, ())
    assert fleet.registry.model("n") is None
    assert fleet.registry.agents_connected == 0


def test_models_the_identity_does_not_allow_are_left_out_and_counted_once() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("llama-3"), deployment("gpt-5"), models=("llama-*", "qwen"))
    assert [model.id for model in fleet.registry.models()] == ["llama-3"]
    agent.serve(deployment("llama-3"), deployment("gpt-5"))
    fleet.settle()
    assert sample(fleet, "trunkline_agent_claims_refused_total", reason="not_allowed") == 1.0


def test_answers_that_cannot_be_read_are_told_of_once_in_a_session() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m"))
    with capture_logs() as logs:
        for answer in ({}, {"id": "x", "ok": True}, {"id": 1, "ok": "yes"}):
            agent.endpoint.send_command(answer)
            fleet.settle()
    assert [line["event"] for line in logs].count("agent_result_unreadable") == 1
    assert agent.endpoint.session.closed is False


def test_labels_beyond_the_identity_are_refused_and_counted_once() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m"), labels={"region": "eu"})
    said = {"region": "us", "tier": "gold"}
    for _ in range(2):
        agent.endpoint.send_state(AgentState(AgentStatus.READY, (deployment("m"),), labels=said))
        fleet.settle()
    (session,) = fleet.registry.sessions
    assert session.describe().labels == session.deployments["d-m"].labels == {"region": "eu"}
    assert sample(fleet, "trunkline_agent_claims_refused_total", reason="label_not_allowed") == 2.0
    agent.endpoint.send_state(AgentState(AgentStatus.READY, (deployment("m"),), labels={"region": "eu"}))
    fleet.settle()
    assert sample(fleet, "trunkline_agent_claims_refused_total", reason="label_not_allowed") == 2.0


def test_an_identity_with_no_models_may_serve_none() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment("m"), models=())
    assert fleet.registry.models() == []


def test_case_counts_in_what_an_identity_allows() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment("Llama"), models=("llama",))
    assert fleet.registry.models() == []


def test_slots_are_bounded_whatever_the_agent_says() -> None:
    fleet = Fleet(registry=RegistrySettings(max_slots=8))
    agent = fleet.connect("a", deployment("m", 1_000_000))
    assert fleet.session(agent).deployments["d-m"].slots == 8


def test_model_names_are_bounded_and_those_longest_gone_make_room() -> None:
    fleet = Fleet(registry=RegistrySettings(max_models=2))
    one = fleet.connect("a", deployment("one"))
    fleet.connect("b", deployment("two"))
    fleet.connect("c", deployment("three"))
    assert [model.id for model in fleet.registry.models()] == ["one", "two"]
    assert sample(fleet, "trunkline_agent_claims_refused_total", reason="too_many_models") == 1.0
    fleet.cut(one)
    fleet.connect("d", deployment("four"))
    assert [model.id for model in fleet.registry.models()] == ["four", "two"]


def test_routes_nobody_knows_are_ignored() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment(routes=("chat", "telepathy")))
    assert fleet.session(agent).deployments["d-m"].routes == {"chat"}


def test_the_newest_tunnel_of_an_agent_wins() -> None:
    fleet = Fleet()
    old = fleet.connect("a", deployment("m"))
    new = fleet.connect("a", deployment("m"))
    assert old.lost
    assert isinstance(old.lost_error, TunnelClosed)
    assert old.lost_error.code is ErrorCode.REPLACED
    assert fleet.registry.sessions == [fleet.session(new)]
    model = fleet.registry.model("m")
    assert model is not None
    assert (model.ready, model.deployments) == (True, 1)


def test_the_clean_up_of_a_replaced_tunnel_leaves_the_new_one_alone() -> None:
    fleet = Fleet()
    old = fleet.session(fleet.connect("a", deployment("m")))
    fleet.connect("a", deployment("m"))
    old.on_session_closed(TunnelClosed("late"))
    fleet.registry.detach(old)
    assert fleet.registry.agents_connected == 1
    assert fleet.registry.index.availability("m", "chat") is Availability.SERVED


def test_a_session_older_than_the_connected_one_is_closed_itself() -> None:
    fleet = Fleet()
    earlier = fleet.registry.next_generation()
    agent = fleet.connect("a", deployment("m"))
    stray = fleet.connect("stray")
    endpoint = fleet.session(stray).endpoint
    endpoint.listener = None
    late = fleet.registry.attach(AgentPrincipal("a"), endpoint, earlier)
    assert late.closed
    assert endpoint.closed
    assert fleet.session(agent) in fleet.registry.sessions


def test_only_so_many_agents_are_taken_but_each_may_come_again() -> None:
    fleet = Fleet(registry=RegistrySettings(max_agents=1))
    fleet.connect("a")
    fleet.registry.check_room("a")
    with pytest.raises(HandshakeRejected) as rejected:
        fleet.registry.check_room("b")
    assert rejected.value.code is ErrorCode.OVERLOADED


def test_a_deployment_no_longer_named_takes_nothing_and_goes_with_its_last_stream() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m"))
    client = fleet.submit()
    agent.serve(deployment("n"))
    fleet.settle()
    session = fleet.session(agent)
    assert set(session.deployments) == {"d-m", "d-n"}
    assert fleet.registry.index.availability("m", "chat") is Availability.GONE
    client.cancel()
    fleet.settle()
    agent.streams[0].confirm()
    fleet.settle()
    assert set(session.deployments) == {"d-n"}


def test_a_deployment_that_comes_back_still_knows_what_it_runs() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m", 2))
    fleet.submit()
    agent.endpoint.send_state(AgentState(AgentStatus.READY))
    fleet.settle()
    agent.serve(deployment("m", 2))
    fleet.settle()
    assert fleet.session(agent).deployments["d-m"].in_flight == 1


def test_a_slot_that_is_given_back_is_told_to_those_alone_who_wait_for_slots() -> None:
    fleet = Fleet()
    changes, slots = list[str](), list[str]()
    agent = fleet.connect("a", deployment("m", 2))
    fleet.registry.index.subscribe(changes.append)
    fleet.registry.index.subscribe(slots.append, slots=True)
    for _ in range(2):
        fleet.submit(fleet.request(streaming=False))
    assert fleet.registry.index.open("m") == {}
    for stream in agent.streams:
        stream.stream.send_head(ResponseHead(200, ()))
        stream.stream.end()
        fleet.settle()
    assert (changes, slots) == ([], ["m", "m"])
    assert list(fleet.registry.index.open("m")) == ["a/d-m"]
    agent.endpoint.send_slots({"d-m": 1})
    fleet.settle()
    assert (changes, slots) == (["m"], ["m"] * 3)


def test_another_model_under_the_same_id_is_another_deployment() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m", id="x"))
    client = fleet.submit()
    agent.serve(deployment("n", id="x"))
    fleet.settle()
    assert fleet.session(agent).deployments["x"].in_flight == 0
    client.cancel()
    fleet.settle()
    agent.streams[0].confirm()
    fleet.settle()
    assert fleet.session(agent).deployments["x"].model == "n"
    fleet.assert_quiet()


def test_slots_said_before_the_state_count_too() -> None:
    fleet = Fleet()
    agent = fleet.connect("a")
    agent.endpoint.send_slots({"d-m": 3})
    agent.endpoint.send_state(AgentState(AgentStatus.READY, (deployment("m"),)))
    fleet.settle()
    assert fleet.session(agent).deployments["d-m"].slots == 3


def test_levels_of_deployments_not_named_stay() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m", 2), deployment("n", 3))
    agent.endpoint.send_slots({"d-n": 1})
    fleet.settle()
    slots = {each.id: each.slots for each in fleet.session(agent).deployments.values()}
    assert slots == {"d-m": 2, "d-n": 1}


def test_agents_are_described_for_people() -> None:
    fleet = Fleet()
    agent = fleet.connect("b", deployment("m"), deployment("secret"), models=("m",))
    fleet.connect("a")
    agent.endpoint.send_drain(Drain("restart", 5.0))
    fleet.settle()
    first, second = fleet.registry.agents()
    assert (first.name, first.draining, first.deployments) == ("a", False, ())
    assert (second.name, second.draining) == ("b", True)
    assert [each.model for each in second.deployments] == ["m"]


def test_what_is_counted_of_the_fleet() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m", 4))
    fleet.connect("b", deployment("m", 2, status=DeploymentStatus.FAILED))
    fleet.submit()
    assert sample(fleet, "trunkline_agents_connected", state="ready") == 2
    assert sample(fleet, "trunkline_deployments", model="m", state="loaded") == 1
    assert sample(fleet, "trunkline_deployments", model="m", state="failed") == 1
    assert sample(fleet, "trunkline_slots_granted", model="m") == 4
    assert sample(fleet, "trunkline_requests_in_flight", model="m") == 1
    assert sample(fleet, "trunkline_streams_open") == 1
    assert sample(fleet, "trunkline_agent_slots_granted", agent="a") == 4
    assert sample(fleet, "trunkline_agent_requests_in_flight", agent="a") == 1
    assert sample(fleet, "trunkline_agent_requests_in_flight", agent="b") == 0
    agent.endpoint.send_drain(Drain("restart", 5.0))
    fleet.settle()
    assert sample(fleet, "trunkline_agents_connected", state="draining") == 1


def test_an_agent_that_comes_back_with_fewer_rights_serves_no_more_than_those() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment("m"), deployment("n"))
    (session,) = fleet.registry.sessions
    session.allow(AgentPrincipal("a", models=("n",)))
    assert [model.id for model in fleet.registry.models() if model.ready] == ["n"]
    session.allow(AgentPrincipal("a"))
    assert [model.id for model in fleet.registry.models() if model.ready] == ["m", "n"]


def test_an_agent_from_which_an_operator_keeps_work_gets_none_until_it_may() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment("m"))
    (session,) = fleet.registry.sessions
    fleet.registry.allow(session, AgentPrincipal("a", held=True))
    assert not fleet.registry.models()[0].ready
    assert fleet.registry.agents()[0].draining
    assert run_at_once(fleet.registry.figures()).agents == {"draining": 1}
    fleet.registry.allow(session, AgentPrincipal("a"))
    assert fleet.registry.models()[0].ready
    assert not fleet.registry.agents()[0].draining


def test_a_hold_holds_no_claims_against_an_agent_again() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment("m"), deployment("n"), models=("m",))
    fleet.registry.allow(fleet.registry.sessions[0], AgentPrincipal("a", ("m",), {}, held=True))
    assert sample(fleet, "trunkline_agent_claims_refused_total", reason="not_allowed") == 1.0


@pytest.mark.parametrize("names", ["bcd", "bac", "bca", "dab", "cab"])
def test_agents_that_take_over_names_of_each_other_at_once_all_stay(names: str) -> None:
    fleet = Fleet()
    for name in "abc":
        fleet.connect(name, deployment("m"), deployment(f"of-{name}"))
    sessions = {session.principal.name: session for session in fleet.registry.sessions}
    for name, new in zip("abc", names, strict=True):
        fleet.registry.allow(sessions[name], AgentPrincipal(new))
    fleet.settle()
    found = {each.principal.name: set(each.deployments) for each in fleet.registry.sessions}
    assert found == {new: {"d-m", f"d-of-{name}"} for name, new in zip("abc", names, strict=True)}
    deployments = {model.id: model.deployments for model in fleet.registry.models()}
    assert deployments == {"m": 3, "of-a": 1, "of-b": 1, "of-c": 1}
    for name, new in zip("abc", names, strict=True):
        sessions[name].close(ErrorCode.NO_ERROR, "bye")
        assert new not in {each.principal.name for each in fleet.registry.sessions}
    assert not any(model.deployments for model in fleet.registry.models())


def flood(fleet: Fleet, agent: FakeAgent) -> int:
    """How many SLOTS the gateway takes of an agent that sends them without end."""
    session = fleet.session(agent).endpoint.session
    for taken in range(10_000):
        try:
            session.receive_message(encode(FrameType.SLOTS, 0, b'{"d-m":1}'), fleet.loop.now_s)
        except ControlFrameFlood:
            fleet.cut(agent)
            return taken
    raise AssertionError("it goes on for ever")


def test_an_agent_that_comes_again_has_no_new_allowance_of_control_frames() -> None:
    fleet = Fleet()
    assert flood(fleet, fleet.connect("a")) == limits.CONTROL_FRAMES_BURST
    assert flood(fleet, fleet.connect("a")) == 0
    assert flood(fleet, fleet.connect("b")) == limits.CONTROL_FRAMES_BURST
    fleet.advance(1.0)
    assert flood(fleet, fleet.connect("a")) == limits.CONTROL_FRAMES_PER_S


def test_a_session_that_replaces_another_goes_on_with_its_allowance() -> None:
    fleet = Fleet()
    first = fleet.connect("a")
    for _ in range(600):
        first.endpoint.send_slots({"d-m": 1})
        fleet.settle()
    again = fleet.connect("a")
    assert fleet.session(first).closed
    assert flood(fleet, again) == limits.CONTROL_FRAMES_BURST - 600


def test_what_streams_had_earned_ends_with_their_session() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment("m", 8))
    for _ in range(8):
        fleet.submit()
    assert flood(fleet, fleet.connect("a")) == limits.CONTROL_FRAMES_BURST


def test_agents_that_left_are_remembered_only_until_they_have_earned_everything_again() -> None:
    fleet = Fleet()
    for number in range(50):
        fleet.cut(fleet.connect(f"a{number}"))
    assert len(fleet.registry._left) == 50
    fleet.advance(limits.CONTROL_FRAMES_BURST / limits.CONTROL_FRAMES_PER_S)
    fleet.cut(fleet.connect("a"))
    assert list(fleet.registry._left) == ["a"]
