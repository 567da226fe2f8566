"""A child with agents of several regions says where each deployment is, and its parent goes by it."""

from dataclasses import replace

import orjson
import pytest

from gateway.domain.residency import read_where
from shared.protocol.messages import AgentState, AgentStatus, DeploymentState
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment
from tests.gateway.uplink.child import OWN, PARENT, Child

EU, US = {"region": "eu"}, {"region": "us"}


def _parent(labels: dict[str, str], *offered: DeploymentState) -> tuple[Fleet, FakeAgent]:
    """A parent whose child has these labels in its identity."""
    fleet = Fleet()
    fleet.registry.gateway_id = lambda: PARENT
    child = fleet.connect("child", labels=labels)
    fleet.session(child).is_gateway = True
    child.serve(*offered)
    fleet.settle()
    return fleet, child


def _group(name: str, labels: dict[str, str] | None) -> DeploymentState:
    return replace(deployment("m", 4, id=name), via=(OWN,), labels=labels)


def _asked(fleet: Fleet, child: FakeAgent, where: str | None) -> str | None:
    """Which group a request goes to."""
    before = len(child.streams)
    fleet.submit(fleet.request(where=None if where is None else read_where(where)))
    return child.streams[-1].head.deployment if len(child.streams) > before else None


def test_a_request_goes_to_the_region_that_it_demands() -> None:
    fleet, child = _parent({"region": "eu,us"}, _group("e", EU), _group("u", US), _group("n", {}))
    for where, group in (("region=eu", "e"), ("region=us", "u"), ("region=ca", None)):
        assert _asked(fleet, child, where) == group
    assert child.streams[0].head.where == {"region": ("eu",)}


def test_what_the_identity_does_not_allow_does_not_count() -> None:
    fleet, child = _parent(EU, _group("u", US))
    assert _asked(fleet, child, "region=us") is None
    assert _asked(fleet, child, "region=eu") is None
    assert _asked(fleet, child, None) == "u"


@pytest.mark.parametrize("labels", [EU, {"region": "eu", "zone": "a"}])
def test_a_child_of_an_earlier_version_has_the_labels_of_its_identity(labels: dict[str, str]) -> None:
    fleet, child = _parent(labels, _group("g", None))
    assert _asked(fleet, child, "region=eu") == "g"
    assert _asked(fleet, child, "region=us") is None


def test_an_ordinary_agent_of_several_regions_says_in_which_it_stands() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", labels={"region": "eu,us"})
    agent.endpoint.send_state(AgentState(AgentStatus.READY, (deployment("m", 4),), labels=US))
    agent.endpoint.send_slots({"d-m": 4})
    fleet.settle()
    assert _asked(fleet, agent, "region=us") == "d-m"
    assert _asked(fleet, agent, "region=eu") is None


def test_a_region_that_changes_counts_from_then_on() -> None:
    fleet, child = _parent({"region": "eu,us"}, _group("g", EU))
    child.serve(_group("g", US))
    fleet.settle()
    assert _asked(fleet, child, "region=eu") is None
    assert _asked(fleet, child, "region=us") == "g"


async def test_each_region_of_a_child_is_offered_by_itself_and_kept() -> None:
    child = Child(labels={"region": "ca"})
    agents = {
        name: child.fleet.connect(name, deployment("m", 1), labels={"region": name}) for name in ("eu", "us")
    }
    agents["ca"] = child.fleet.connect("anywhere", deployment("m", 1))
    groups = {each.labels["region"]: each.id for each in child.capacity.state().deployments if each.labels}
    assert set(groups) == {"eu", "us", "ca"}
    for name, group in groups.items():
        assert child.ask(deployment=group, where={"region": (name,)}).reset_with is None
        assert len(agents[name].streams) == 1
    assert child.ask(deployment=groups["us"], where={"region": ("eu",)}).reset_with is not None


def test_only_gateways_say_labels_of_a_deployment_and_others_say_what_they_always_said() -> None:
    plain = AgentState(AgentStatus.READY, (deployment("m"),)).to_payload()
    assert b"labels" not in plain
    said = AgentState(AgentStatus.READY, (_group("g", EU),)).to_payload()
    assert orjson.loads(said)["deployments"][0]["labels"] == EU
    assert AgentState.from_payload(said).deployments[0].labels == EU
    assert AgentState.from_payload(plain).deployments[0].labels is None
