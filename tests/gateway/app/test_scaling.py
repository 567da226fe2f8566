"""Scaling as a gateway process has it: settings, and what other processes see."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.app.scaling import QUESTION, ScalingParts, scaling_settings
from gateway.cluster.ownership import SoleOwner
from gateway.runtime.config import ConfigError, Settings
from gateway.runtime.config.scaling import ScalingTable
from gateway.runtime.workers.siblings import SiblingAnswers
from gateway.scaling.observation import SeenModel, SeenReplica, to_json
from gateway.storage import Store
from shared.protocol.errors import ErrorCode
from tests.gateway.fleet.fleet import Fleet, deployment


class Others:
    """One other process, and one that answers something else."""

    def __init__(self) -> None:
        self.answerers: dict[str, Any] = {}

    def answer(self, question: str, answerer: Any) -> None:
        self.answerers[question] = answerer

    async def ask_all(self, question: str, **facts: Any) -> SiblingAnswers:
        assert question == QUESTION
        seen = {"m": SeenModel(waiting=2, replicas={"b": SeenReplica("b", "l4", 4, True)})}
        return SiblingAnswers({"p-2": to_json(seen), "p-3": {"models": 1}}, [])


def parts_of(fleet: Fleet, settings: Settings, others: Others | None, directory: Path) -> ScalingParts:
    store = Store.open(directory)
    return ScalingParts(settings, fleet.dispatcher, others, store, SoleOwner())  # type: ignore[arg-type]


def test_settings_of_a_model_count_before_those_of_all() -> None:
    table = ScalingTable.model_validate(
        {
            "first_token_s": 4.0,
            "classes": {"l4": {"price_hour": 0.8}},
            "models": {"big-*": {"min_replicas": 0, "classes": ["h100"]}},
        }
    )
    chosen = scaling_settings(table, 45.0)
    rule, classes = chosen.of("big-1")
    assert (rule.min_replicas, rule.first_token_s, rule.most_wait_s, classes) == (0, 4.0, 45.0, ["h100"])
    rule, classes = chosen.of("small")
    assert (rule.min_replicas, classes) == (1, ["l4"])
    assert chosen.classes["l4"].price_hour == 0.8


async def test_what_other_processes_see_counts_too(tmp_path: Path) -> None:
    fleet, others = Fleet(), Others()
    fleet.connect("a", deployment("m", slots=4))
    parts = parts_of(fleet, Settings(), others, tmp_path)
    await parts.scaler.decide()
    found = parts.scaler.verdicts["m"]
    assert found.waiting == 2
    assert sum(each.ready for each in found.classes.values()) == 2
    said = await others.answerers[QUESTION]({})
    assert set(said["models"]["m"]["replicas"]) == {"a"}, "of itself alone"


async def test_requests_for_what_is_kept_at_none_are_held_until_a_replica_is_there(
    tmp_path: Path,
) -> None:
    fleet = Fleet()
    settings = Settings.model_validate({"scaling": {"min_replicas": 0, "hold_s": 100.0}})
    parts = parts_of(fleet, settings, None, tmp_path)
    agent = fleet.connect("a", deployment("m", slots=4))
    fleet.session(agent).close(ErrorCode.DRAINING, "bye")
    fleet.advance(60.0)
    client = fleet.submit(fleet.request())
    await parts.scaler.decide()
    assert parts.scaler.verdicts["m"].wanted == 1
    fleet.advance(70.0)
    assert fleet.dispatcher.room.depth("m") == 1, "longer than queue.max_wait_s"
    back = fleet.connect("b", deployment("m", slots=4))
    fleet.settle()
    assert len(back.streams) == 1
    assert client is not None


async def test_without_scaling_nothing_is_held_and_no_metric_is_there(tmp_path: Path) -> None:
    fleet = Fleet()
    settings = Settings.model_validate({"scaling": {"enabled": False, "min_replicas": 0}})
    parts = parts_of(fleet, settings, None, tmp_path)
    assert fleet.dispatcher.admission.held_s("m") == 0.0
    await parts.run()
    assert parts.scaler.verdicts == {}


async def test_a_change_is_told_to_the_command_that_is_set(tmp_path: Path) -> None:
    fleet, told = Fleet(), tmp_path / "told"
    given = {"command": ["sh", "-c", f"cat > {told}.new; mv {told}.new {told}"], "interval_s": 0.1}
    parts = parts_of(fleet, Settings.model_validate({"scaling": given}), None, tmp_path / "state")
    fleet.connect("a", deployment("m", slots=4))
    for _ in range(40):
        fleet.submit(fleet.request())
    running = asyncio.ensure_future(parts.run())
    while not told.exists():  # noqa: ASYNC110 (another process writes it)
        await asyncio.sleep(0.01)
    running.cancel()
    said = orjson.loads(told.read_bytes())
    assert (said["model"], said["class"], said["from"]) == ("m", "unknown", 1)
    assert said["to"] > 1


async def test_keda_is_answered_only_by_the_first_worker_and_only_where_it_is_set(tmp_path: Path) -> None:
    settings = Settings.model_validate({"scaling": {"keda_listen": "127.0.0.1:0"}})
    fleet, store = Fleet(), Store.open(tmp_path)
    more = (fleet.dispatcher, None, store, SoleOwner())
    assert ScalingParts(settings, *more)._keda is not None
    fleet = Fleet()
    more = (fleet.dispatcher, None, store, SoleOwner())
    assert ScalingParts(settings, *more, first=False)._keda is None


async def test_files_for_keda_that_cannot_be_read_are_told_at_the_start(tmp_path: Path) -> None:
    missing = {"keda_listen": "127.0.0.1:0", "keda_token_file": str(tmp_path / "none")}
    with pytest.raises(ConfigError, match="cannot be read"):
        parts_of(Fleet(), Settings.model_validate({"scaling": missing}), None, tmp_path)
