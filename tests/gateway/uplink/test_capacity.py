"""What the parent is offered: groups of deployments, and of each no more slots than are free."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import NoSlotFree, RequestDeclined
from gateway.uplink.capacity import NOTHING_SERVED, UplinkCapacity, UplinkSlot
from shared.protocol.messages import AgentStatus, DeploymentState, DeploymentStatus
from shared.protocol.work import WorkScale
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment

OWN, PARENT, OTHER = "0" * 16, "f" * 16, "a" * 16
ONE = object()


def make(fleet: Fleet) -> UplinkCapacity:
    fleet.registry.gateway_id, fleet.registry.gateway_ids = lambda: OWN, lambda: frozenset((OWN,))
    room, index = fleet.dispatcher.room, fleet.registry.index
    return UplinkCapacity(index, room.depth, lambda: OWN, lambda: [PARENT], fleet.loop)


def offered(capacity: UplinkCapacity) -> list[DeploymentState]:
    return list(capacity.state().deployments)


def levels(capacity: UplinkCapacity, session: object = ONE) -> list[int]:
    return list(capacity.levels(session).values())


def test_deployments_that_differ_in_nothing_are_offered_as_one() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    fleet.connect("a", replace(deployment("m", 2), kind="vllm", context_tokens=4096))
    fleet.connect("b", replace(deployment("m", 3), kind="vllm", context_tokens=8192))
    (group,) = offered(capacity)
    assert (group.model, group.slots, group.context_tokens, group.via) == ("m", 5, 4096, (OWN,))
    assert levels(capacity) == [5]


@pytest.mark.parametrize(
    ("other", "labels"),
    [
        (replace(deployment("m"), version="v2"), {}),
        (replace(deployment("m"), kind="sglang"), {}),
        (deployment("n"), {}),
        (deployment("m"), {"region": "us"}),
    ],
)
def test_what_differs_is_offered_by_itself(other: DeploymentState, labels: dict[str, str]) -> None:
    fleet = Fleet()
    capacity = make(fleet)
    fleet.connect("a", deployment("m"))
    fleet.connect("b", other, labels=labels)
    assert len({each.id for each in offered(capacity)}) == 2
    again = Fleet()
    later = make(again)
    again.connect("b", other, labels=labels)
    again.connect("a", deployment("m"))
    assert {each.id for each in offered(later)} == {each.id for each in offered(capacity)}


def test_a_group_can_do_what_all_its_deployments_can() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    ways = {"chat": "prefill", "completions": "prompt"}
    first = replace(deployment("m", routes=("chat", "completions")), continues=ways)
    fleet.connect("a", first)
    fleet.connect("b", replace(deployment("m", routes=("chat",)), continues={"chat": "prefill"}))
    (group,) = offered(capacity)
    assert (group.routes, group.continues) == (("chat",), {"chat": "prefill"})


def test_a_group_has_the_capabilities_of_all_and_translates_what_all_of_them_have_to() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    routes, translated = ("chat", "messages", "responses"), ("messages", "responses")
    scale = WorkScale(20.0, {"steps": 20.0})
    words = ("tools", "vision")
    one = deployment("m", routes=routes, translated=translated, capabilities=words, work=scale)
    fleet.connect("a", one)
    fleet.connect("b", replace(one, translated=("messages",), capabilities=("vision", "thinking")))
    (group,) = offered(capacity)
    assert (group.translated, group.capabilities) == (("messages",), ("vision",))
    assert group.work == scale


def test_nothing_that_is_not_loaded_is_offered() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    fleet.connect("a", replace(deployment("m"), status=DeploymentStatus.LOADABLE, managed=True))
    assert (offered(capacity), capacity.state().reason) == ([], NOTHING_SERVED)


def test_what_comes_from_the_parent_is_not_offered_back_nor_a_path_that_is_too_long() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    short = replace(deployment("near"), via=(OTHER,), device="L4")
    echo, own = replace(deployment("echo"), via=(OTHER, PARENT)), replace(deployment("own"), via=(OTHER, OWN))
    far = replace(deployment("far"), via=("1" * 16, "2" * 16, "3" * 16, "4" * 16))
    agent = fleet.connect("child")
    fleet.session(agent).is_gateway = True
    agent.serve(short, echo, own, far)
    fleet.settle()
    assert [(each.model, each.via, each.device) for each in offered(capacity)] == [
        ("near", (OWN, OTHER), "L4")
    ]
    assert fleet.registry.model("own") is None


def test_what_clients_of_this_gateway_take_is_not_lent() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    told: list[int] = []
    capacity.on_levels = lambda: told.extend(levels(capacity))
    fleet.connect("a", deployment("m", 2))
    fleet.submit()
    assert levels(capacity) == [1]
    assert told
    fleet.submit()
    fleet.submit()
    assert levels(capacity) == [0]
    with pytest.raises(NoSlotFree):
        capacity.enter(ONE, offered(capacity)[0].id)


def test_a_request_keeps_its_place_from_its_beginning_to_its_end() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    fleet.connect("a", deployment("m", 2))
    (group,) = offered(capacity)
    first, second = capacity.enter(ONE, group.id), capacity.enter(ONE, group.id)
    assert levels(capacity) == [2]
    with pytest.raises(NoSlotFree, match="taken"):
        capacity.enter(ONE, group.id)
    capacity.leave(first)
    capacity.leave(second)
    assert (levels(capacity), capacity.running) == ([2], 0)


def test_a_group_whose_agents_left_stays_until_its_requests_are_over() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    agent = fleet.connect("a", deployment("m", 2))
    (group,) = offered(capacity)
    slot = capacity.enter(ONE, group.id)
    fleet.cut(agent)
    assert (offered(capacity), levels(capacity)) == ([], [])
    capacity.leave(slot)
    assert capacity.state().deployments == ()
    with pytest.raises(RequestDeclined, match="any more"):
        capacity.enter(ONE, group.id)


def test_who_drains_offers_no_slot() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    fleet.connect("a", deployment("m", 2))
    (group,) = offered(capacity)
    capacity.drain()
    assert (levels(capacity), capacity.state().status) == ([0], AgentStatus.DRAINING)
    with pytest.raises(NoSlotFree, match="draining"):
        capacity.enter(ONE, group.id)


def test_sessions_with_processes_of_the_parent_divide_what_is_free() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    fleet.connect("a", deployment("m", 4))
    (group,) = offered(capacity)
    sessions = [object(), object()]
    for number, session in enumerate(sessions):
        capacity.slots.add(session, f"p{number}")
    fleet.advance(1.0)  # an OPEN that may cross a lowered level is waited for
    assert sum(level for session in sessions for level in levels(capacity, session)) == 4
    fleet.submit()
    assert sum(level for session in sessions for level in levels(capacity, session)) == 3
    slot = capacity.enter(sessions[0], group.id)
    assert sum(level for session in sessions for level in levels(capacity, session)) == 3
    capacity.leave(slot)
    capacity.slots.remove(sessions[0])
    fleet.advance(1.0)
    assert levels(capacity, sessions[1]) == [3]


@given(st.lists(st.sampled_from(["local", "parent 0", "parent 1", "end local", "end parent"]), max_size=40))
def test_no_more_is_lent_than_is_free_and_nobody_of_the_parent_is_about_to_take(steps: list[str]) -> None:
    fleet = Fleet()
    capacity = make(fleet)
    agents = [fleet.connect(name, deployment("m", 2)) for name in ("a", "b")]
    (group,) = offered(capacity)
    sessions, slots = [object(), object()], list[UplinkSlot]()
    for number, session in enumerate(sessions):
        capacity.slots.add(session, f"p{number}")
    for step in steps:
        if step == "local":
            fleet.submit()
        elif step == "end local":
            _end_one(agents)
            fleet.settle()
        elif step == "end parent":
            if slots:
                capacity.leave(slots.pop())
        else:
            try:
                slots.append(capacity.enter(sessions[int(step[-1])], group.id))
            except NoSlotFree:
                continue
        taken = sum(each.in_flight for each in fleet.registry.index.serving("m"))
        lent = sum(level for each in sessions for level in levels(capacity, each)) - len(slots)
        assert lent <= max(0, 4 - taken - len(slots))


def _end_one(agents: list[FakeAgent]) -> None:
    for agent in agents:
        for stream in agent.open_streams:
            stream.confirm()
            return


def test_models_whose_long_names_begin_alike_are_offered_apart() -> None:
    fleet = Fleet()
    capacity = make(fleet)
    names = ["/models/" + "x" * 200 + size for size in ("-7b", "-70b")]
    for agent, name in zip("ab", names, strict=True):
        fleet.connect(agent, deployment(name))
    groups = {each.model: each.id for each in offered(capacity)}
    assert sorted(groups) == sorted(names)
    assert len(set(groups.values())) == 2
    for name in names:
        assert [each.model for each in capacity.enter(ONE, groups[name]).group.members] == [name]
