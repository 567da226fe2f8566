"""Scaling as a gateway process has it: settings, and what other processes see."""

from typing import Any

from gateway.app.scaling import QUESTION, ScalingParts, scaling_settings
from gateway.runtime.config import Settings
from gateway.runtime.config.scaling import ScalingTable
from gateway.runtime.workers.siblings import SiblingAnswers
from gateway.scaling.observation import SeenModel, SeenReplica, to_json
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


async def test_what_other_processes_see_counts_too() -> None:
    fleet, others = Fleet(), Others()
    fleet.connect("a", deployment("m", slots=4))
    parts = ScalingParts(Settings(), fleet.dispatcher, others)  # type: ignore[arg-type]
    await parts.scaler.decide()
    found = parts.scaler.verdicts["m"]
    assert found.waiting == 2
    assert sum(each.ready for each in found.classes.values()) == 2
    said = await others.answerers[QUESTION]({})
    assert set(said["models"]["m"]["replicas"]) == {"a"}, "of itself alone"


async def test_requests_for_what_is_kept_at_none_are_held_until_a_replica_is_there() -> None:
    fleet = Fleet()
    settings = Settings.model_validate({"scaling": {"min_replicas": 0, "hold_s": 100.0}})
    parts = ScalingParts(settings, fleet.dispatcher, None)
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


async def test_without_scaling_nothing_is_held_and_no_metric_is_there() -> None:
    fleet = Fleet()
    parts = ScalingParts(
        Settings.model_validate({"scaling": {"enabled": False, "min_replicas": 0}}), fleet.dispatcher, None
    )
    assert fleet.dispatcher.admission.held_s("m") == 0.0
    await parts.run()
    assert parts.scaler.verdicts == {}
