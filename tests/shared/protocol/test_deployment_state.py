"""What a STATE says of deployments, to peers of every version (PROTOCOL §4.7)."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from shared.protocol import limits
from shared.protocol.deployment_state import device_of
from shared.protocol.errors import FrameMalformed
from shared.protocol.messages import AgentState, AgentStatus, DeploymentState, GpuState, state_within
from shared.protocol.work import WorkScale

PLAIN = DeploymentState("e/m", "m", routes=("chat", "messages"), upgrades=True)
SAYS_MORE = replace(
    PLAIN,
    translated=("messages",),
    capabilities=("tools", "vision"),
    gpu_indices=(1, 0),
    work=WorkScale(5.5, {"steps": 20.0}),
)
NEW_MEMBERS = {"translated", "capabilities", "gpu_indices", "work"}


def state(*deployments: DeploymentState) -> AgentState:
    return AgentState(AgentStatus.READY, deployments)


def read(**said: Any) -> DeploymentState:
    entry = {"id": "e/m", "model": "m", "status": "loaded", **said}
    return AgentState.from_payload(orjson.dumps({"status": "READY", "deployments": [entry]})).deployments[0]


def test_a_state_is_read_as_it_was_written() -> None:
    for each in (state(PLAIN), state(SAYS_MORE), state(PLAIN, replace(SAYS_MORE, id="e/n"))):
        assert AgentState.from_payload(each.to_payload()) == each


def test_a_gateway_that_does_not_know_the_new_members_reads_what_it_always_did() -> None:
    """It ignores members it does not know, and what has none of them is byte for byte as it was."""
    (old,) = orjson.loads(state(PLAIN).to_payload())["deployments"]
    (new,) = orjson.loads(state(SAYS_MORE).to_payload())["deployments"]
    assert not NEW_MEMBERS & old.keys()
    assert {name: value for name, value in new.items() if name not in NEW_MEMBERS} == old
    assert b'"continues":{},"upgrades":true}' in state(PLAIN).to_payload()


def test_an_agent_that_does_not_know_the_new_members_is_read_as_ever() -> None:
    assert (read().translated, read().capabilities, read().gpu_indices, read().work) == ((), (), (), None)


def test_what_can_be_no_need_or_word_is_left_out() -> None:
    assert read(translated=["messages", 7, "", "x" * 200]).translated == ("messages",)
    assert read(capabilities=["tools", "two words", 7, "tools"]).capabilities == ("tools",)
    many = read(capabilities=[f"c{number}" for number in range(100)]).capabilities
    assert len(many) == limits.MODEL_CAPABILITIES
    assert read(gpu_indices=[1, -1, True, "0", 1.0, 4097, 1, 0]).gpu_indices == (1, 0)
    assert len(read(gpu_indices=[*range(200)]).gpu_indices) == limits.GPUS
    assert read(work={"units": -1}).work is None
    assert read(work={"units": 2, "inputs": {"steps": 20, "x": []}}).work == WorkScale(2.0, {"steps": 20.0})


def test_a_deployment_runs_on_its_own_gpus_or_nobody_knows_which_of_its_hosts() -> None:
    gpus = [GpuState(index, name, 1, 0) for index, name in enumerate(("H200", "A10", "A10"))]
    assert device_of(PLAIN, gpus) == "A10,H200"
    assert device_of(PLAIN, []) == ""
    assert device_of(replace(PLAIN, gpu_indices=(0,)), gpus) == "H200"
    assert device_of(replace(PLAIN, gpu_indices=(1, 2)), gpus) == "A10"
    assert device_of(replace(PLAIN, gpu_indices=(7,)), gpus) == "A10,H200", "there is no such GPU"


def test_names_of_devices_have_no_characters_that_cannot_be_printed() -> None:
    """A store may take no text with such, and whoever looks at one is not to be steered by it."""
    gpu = {"index": 0, "name": "A\x0010\n", "memory_total_bytes": 1, "memory_used_bytes": 0}
    said = AgentState.from_payload(orjson.dumps({"status": "READY", "deployments": [], "gpus": [gpu]}))
    assert said.gpus[0].name == "A 10 "
    assert read(device="B\x00200,\x1bH200").device == "B 200, H200"


def test_an_agents_gpus_are_told_as_ever_where_there_are_none() -> None:
    assert b'"gpus":[]' in state(PLAIN).to_payload()


def test_what_a_gpu_draws_is_said_where_it_is_known_and_older_peers_are_unharmed() -> None:
    """Without it a GPU is byte for byte what it was; of agents that do not say it nothing is known."""
    silent, told = GpuState(0, "GPU", 10, 5, 0.5, 60.0), GpuState(0, "GPU", 10, 5, 0.5, 60.0, 412.5)
    before = (
        b'"gpus":[{"index":0,"name":"GPU","memory_total_bytes":10,"memory_used_bytes":5,"utilisation":0.5,'
    )
    assert before + b'"temperature_c":60.0}]' in AgentState(AgentStatus.READY, gpus=(silent,)).to_payload()
    payload = AgentState(AgentStatus.READY, gpus=(told,)).to_payload()
    assert before + b'"temperature_c":60.0,"power_w":412.5}]' in payload
    assert AgentState.from_payload(payload).gpus == (told,)
    assert AgentState.from_payload(payload.replace(b',"power_w":412.5', b"")).gpus == (silent,)
    later = payload.replace(b'"power_w"', b'"of_a_later_version"')
    assert AgentState.from_payload(later).gpus == (silent,), "a member that is not known is passed over"


def test_a_state_that_is_too_long_says_less_of_its_models_before_it_leaves_one_out() -> None:
    many = [replace(SAYS_MORE, id=f"e/{number}") for number in range(20)]
    plain_bytes = len(state(*[replace(each, capabilities=()) for each in many]).to_payload())
    whole = state(*many)
    assert state_within(whole, len(whole.to_payload())) == whole
    assert [d.capabilities for d in state_within(whole, plain_bytes).deployments] == [()] * 20
    cut = state_within(whole, plain_bytes - 1)
    assert [each.id for each in cut.deployments] == [f"e/{number}" for number in range(19)]


@pytest.mark.parametrize("member", sorted(NEW_MEMBERS - {"work"}))
def test_what_is_no_list_is_malformed(member: str) -> None:
    with pytest.raises(FrameMalformed):
        read(**{member: "messages"})
