"""Requests that belong together go to one agent."""

from dataclasses import replace
from typing import Any

from msgspec import structs

from gateway.dispatch.dispatcher import DispatchSettings
from gateway.domain.errors import NoDeployment
from gateway.domain.request import Principal, Request
from gateway.domain.residency import read_where
from gateway.scheduling.policies.affinity import SessionAffinity, pin_of
from shared.protocol.messages import DeploymentState, ResponseHead
from tests.gateway.fleet.fleet import FakeAgent, Fleet

COMFY = DeploymentState("d", "m", routes=("any",), slots=8, stateful=True)
PLAIN = replace(COMFY, stateful=False)


def fleet_of(
    *names: str, state: DeploymentState = COMFY, **labels: dict[str, str]
) -> tuple[Fleet, dict[str, FakeAgent]]:
    fleet = Fleet(settings=DispatchSettings(reconnect_grace_s=5))
    return fleet, {name: fleet.connect(name, state, labels=labels.get(name)) for name in names}


def own_path(fleet: Fleet, key: str = "k", session: str | None = None, **more: Any) -> Request:
    principal = Principal(key, key, "tenant", more.pop("allowed", None))
    more.setdefault("where", principal.where)
    return fleet.request(route="any", streaming=False, session_key=session, principal=principal, **more)


def finish(agent: FakeAgent, fleet: Fleet) -> None:
    for stream in agent.open_streams:
        stream.stream.send_head(ResponseHead(200, ()))
        stream.stream.end()
    fleet.settle()


def taken(agents: dict[str, FakeAgent]) -> dict[str, int]:
    return {name: len(agent.streams) for name, agent in agents.items()}


def test_all_requests_of_a_key_go_to_the_same_stateful_engine() -> None:
    fleet, agents = fleet_of("a", "b", "c")
    for _ in range(8):  # together, before any of them has ended
        fleet.submit(own_path(fleet))
    assert sorted(taken(agents).values()) == [0, 0, 8]


def test_other_keys_begin_where_less_runs() -> None:
    fleet, agents = fleet_of("a", "b", "c")
    for key in ("k1", "k2", "k3"):
        for _ in range(2):
            fleet.submit(own_path(fleet, key))
    assert sorted(taken(agents).values()) == [2, 2, 2]


def test_sessions_of_one_key_are_apart_and_each_stays() -> None:
    fleet, agents = fleet_of("a", "b", state=PLAIN)
    for session in ("s1", "s2", "s1", "s2", "s2"):
        fleet.submit(own_path(fleet, session=session))
    assert sorted(taken(agents).values()) == [2, 3]
    fleet.submit(own_path(fleet, key="another of the tenant", session="s2"))
    assert sorted(taken(agents).values()) == [2, 4]


def test_without_a_session_an_engine_that_keeps_nothing_is_chosen_anew_each_time() -> None:
    fleet, agents = fleet_of("a", "b", state=PLAIN)
    for _ in range(4):
        fleet.submit(own_path(fleet))
    assert sorted(taken(agents).values()) == [2, 2]


def test_a_session_waits_for_its_busy_agent_though_another_is_free() -> None:
    fleet, agents = fleet_of("a", "b", state=replace(COMFY, slots=1))
    first, second = fleet.submit(own_path(fleet)), fleet.submit(own_path(fleet))
    assert sorted(taken(agents).values()) == [0, 1]
    (home,) = [agent for agent in agents.values() if agent.streams]
    finish(home, fleet)
    first.response.abort()
    fleet.settle()
    assert len(home.streams) == 2
    assert not second.settled


def test_a_session_waits_for_its_agent_to_come_back_and_goes_on_there() -> None:
    fleet, agents = fleet_of("a", "b")
    fleet.submit(own_path(fleet))
    (home,) = [agent for agent in agents.values() if agent.streams]
    fleet.cut(home)
    waiting = fleet.submit(own_path(fleet))
    fleet.advance(3.0)
    assert not waiting.settled
    back = fleet.connect(home.name, COMFY)
    assert len(back.streams) == 1


def test_a_session_goes_on_elsewhere_when_its_agent_does_not_come_back() -> None:
    fleet, agents = fleet_of("a", "b")
    fleet.submit(own_path(fleet))
    (home,) = [agent for agent in agents.values() if agent.streams]
    (other,) = [agent for agent in agents.values() if not agent.streams]
    fleet.cut(home)
    waiting = fleet.submit(own_path(fleet))
    fleet.advance(6.0)
    assert len(other.streams) == 1
    assert not waiting.settled
    fleet.submit(own_path(fleet))
    assert len(other.streams) == 2
    back = fleet.connect(home.name, COMFY)
    fleet.submit(own_path(fleet))
    assert (len(back.streams), len(other.streams)) == (0, 3)  # it stays where it went on


def test_a_new_agent_takes_no_session_away() -> None:
    fleet, agents = fleet_of("a", "b")
    for session in range(8):
        fleet.submit(own_path(fleet, session=str(session)))
    before = taken(agents)
    newcomer = fleet.connect("c", COMFY)
    for session in range(8):
        fleet.submit(own_path(fleet, session=str(session)))
    assert not newcomer.streams
    assert taken(agents) == {name: 2 * count for name, count in before.items()}


def test_a_session_keeps_to_where_its_key_may_run() -> None:
    fleet, agents = fleet_of("us", "eu", us={"region": "us"}, eu={"region": "eu"})
    allowed = read_where("region=eu")
    for _ in range(4):
        fleet.submit(own_path(fleet, allowed=allowed))
    assert taken(agents) == {"us": 0, "eu": 4}


def test_a_named_agent_answers_and_no_other() -> None:
    fleet, agents = fleet_of("a", "b", state=PLAIN)
    for _ in range(4):
        fleet.submit(own_path(fleet, agent="b"))
    assert taken(agents) == {"a": 0, "b": 4}


def test_a_named_agent_that_is_away_is_told_once_it_had_time_to_come_back() -> None:
    fleet, agents = fleet_of("a", "b", state=PLAIN)
    never = fleet.submit(own_path(fleet, agent="nobody"))
    assert isinstance(never.error, NoDeployment)
    assert (never.error.status, never.error.code) == (503, "agent_unavailable")
    assert "nobody" in never.error.message
    fleet.cut(agents["b"])
    waiting = fleet.submit(own_path(fleet, agent="b"))
    assert not waiting.settled
    fleet.advance(6.0)
    assert isinstance(waiting.error, NoDeployment)
    assert waiting.error.code == "agent_unavailable"
    assert not agents["a"].streams


def test_naming_an_agent_beyond_the_keys_residency_is_the_same_as_naming_none() -> None:
    fleet, agents = fleet_of("us", "eu", us={"region": "us"}, eu={"region": "eu"})
    allowed = read_where("region=eu")
    refused = fleet.submit(own_path(fleet, allowed=allowed, agent="us")).error
    unknown = fleet.submit(own_path(fleet, allowed=allowed, agent="xx")).error
    assert isinstance(refused, NoDeployment)
    assert isinstance(unknown, NoDeployment)
    assert refused.message.replace("us", "xx") == unknown.message
    assert not agents["us"].streams


def test_no_more_sessions_are_remembered_than_there_is_room_for() -> None:
    affinity = SessionAffinity(most=3)
    fleet, _ = fleet_of("a")
    views = list(fleet.registry.index.serving("m"))
    for session in range(10):
        affinity.choose(pin_of("m", f"tenant-{session}", "k", "s"), views)
    assert len(affinity) == 3
    assert affinity.agent_of(pin_of("m", "tenant-0", "k", "s")) is None
    assert affinity.agent_of(pin_of("m", "tenant-9", "k", "s")) == "a"


def test_nobody_has_the_sessions_of_others_forgotten() -> None:
    affinity = SessionAffinity(most=80)
    fleet, _ = fleet_of("one")
    views = list(fleet.registry.index.serving("m"))
    others = pin_of("m", "other", "k1", "s")
    affinity.choose(others, views)
    for number in range(200):
        affinity.choose(pin_of("m", "hostile", "k2", str(number)), views)
    assert affinity.agent_of(others) == "one"
    assert affinity.agent_of(pin_of("m", "hostile", "k2", "199")) == "one"
    assert affinity.agent_of(pin_of("m", "hostile", "k2", "0")) is None
    assert len(affinity) == 21
    assert affinity.choose(others, ()) is None
    assert len(affinity) == 20


def test_a_prompt_waits_for_a_slot_for_prompts_and_other_paths_do_not() -> None:
    prompts = replace(COMFY, id="p", routes=("workflows",), slots=1)
    fleet = Fleet(settings=DispatchSettings(reconnect_grace_s=5))
    agent = fleet.connect("a", prompts, replace(COMFY, id="o", routes=("any", "images"), slots=8))
    for _ in range(2):
        fleet.submit(structs.replace(own_path(fleet), path="/prompt"))
    for _ in range(3):
        fleet.submit(structs.replace(own_path(fleet), method="GET", path="/history/x"))
    assert [stream.stream.head.deployment for stream in agent.streams] == ["p", "o", "o", "o"]
    plain, agents = fleet_of("b")
    plain.submit(structs.replace(own_path(plain), path="/prompt"))  # an engine with such a path of its own
    assert taken(agents) == {"b": 1}
