"""What is told of one process."""

import pytest

from gateway.api.admin.live import state as module
from gateway.api.admin.live.patch import merge_patch
from gateway.api.admin.live.state import ProcessState
from gateway.app.records import make_records
from gateway.domain.request import Tier
from gateway.runtime.config import Settings
from gateway.storage.errors import StateUnwritable
from shared.protocol.deployment_state import GpuState
from shared.protocol.messages import AgentState, AgentStatus, DeploymentStatus, Usage
from tests.gateway.dispatch.decisions.kept import facts
from tests.gateway.fleet.fleet import Fleet, deployment

GPUS = (GpuState(0, "H100", 100, 50, 0.5, 60.0), GpuState(1, "H100", 100, 20, 0.75, 70.0))


def process(fleet: Fleet, *joined: str) -> ProcessState:
    records = make_records(Settings(), fleet.dispatcher)
    return ProcessState(
        fleet.registry,
        fleet.dispatcher.room,
        records,
        "p",
        lambda: joined,
        lambda: {"memory": True, "disk": False},
    )


async def test_agents_deployments_models_and_totals_are_told() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m", 1))
    stated = deployment("m", 1, gpu_indices=(1,), kv_use=0.25)
    agent.endpoint.send_state(AgentState(AgentStatus.READY, (stated,), gpus=GPUS))
    fleet.settle()
    fleet.submit()
    fleet.submit(fleet.request(tier=Tier.BATCH))
    fleet.advance(3.0)
    found = await process(fleet, "a", "away").read()
    assert found["agents"]["away"]["status"] == "away"
    a = found["agents"]["a"]
    assert (a["status"], a["streams"], a["gpus"]["1"]["temperature_c"]) == ("ready", 1, 70.0)
    assert "power_w" not in a["gpus"]["1"], "it is not known"
    one = found["deployments"]["a/d-m"]
    assert (one["slots"], one["in_flight"], one["utilisation"], one["temperature_c"]) == (1, 1, 0.75, 70.0)
    assert (one["gpus"], one["kv_use"], one["status"], one["usable"]) == ("1", 0.25, "loaded", True)
    m = found["models"]["m"]
    assert (m["waiting"], m["oldest_s"], m["tiers"], m["deployments"]) == (1, 3.0, {"batch": 1}, 1)
    assert found["totals"] == {"running": 1, "waiting": 1, "begun": 2, "ended": 0, "failed": 0}
    assert found["troubles"] == {"memory": True}


async def test_agents_that_are_away_stay_known_while_the_store_fails() -> None:
    fleet = Fleet()
    reader = process(fleet, "away")
    before = await reader.read()

    def fails() -> list[str]:
        raise StateUnwritable("the database is away")

    reader.enrolled = fails
    fleet.advance(module.ENROLLED_EVERY_S)
    assert (await reader.read())["agents"] == before["agents"] == {"away": before["agents"]["away"]}


async def test_what_has_not_changed_is_the_same_object() -> None:
    fleet = Fleet()
    agents = [fleet.connect(name, deployment("m", 4)) for name in "ab"]
    reader = process(fleet)
    first = await reader.read()
    fleet.submit()
    second = await reader.read()
    changed = [key for key, each in second["deployments"].items() if each is not first["deployments"][key]]
    assert len(changed) == 1
    patch = merge_patch(first, second)
    assert patch["deployments"] == {changed[0]: {"in_flight": 1}}
    agents[0].serve(deployment("m", 4, status=DeploymentStatus.FAILED, reason="out of memory"))
    fleet.settle()
    third = await reader.read()
    assert third["deployments"]["a/d-m"]["reason"] == "out of memory"


async def test_what_ended_since_a_number_is_told_and_the_rest_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_REQUESTS", 3)
    fleet = Fleet()
    reader = process(fleet)
    book = reader.records
    assert (await reader.happened(None))["number"] == 0
    for number in range(1, 6):
        status = 503 if number == 5 else 200
        usage = Usage(prompt_tokens=10, completion_tokens=number)
        book.add(facts(number, status=status, queue_s=number / 10, usage=usage), "key", 1, 2, None)
    told = await reader.happened(0)
    assert [each["id"] for each in told["ended"]] == ["r3", "r4", "r5"]
    assert (told["number"], told["left_out"]) == (5, 2)
    assert told["flow"] == [
        {"tier": "standard", "model": "m", "deployment": "a/d", "ended": 5, "failed": 1, "queued_s": 0.3}
    ]
    assert told["tokens"] == {"a/d": [50, 15]}
    assert (await reader.happened(5))["ended"] == []
    assert (await reader.happened(None))["ended"] == []
