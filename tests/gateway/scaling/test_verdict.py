from dataclasses import replace

from gateway.scaling.observation import SeenReplica
from gateway.scaling.verdict import ModelVerdict, class_verdict, costs_of
from tests.gateway.scheduling.scaling.facts import L4

REPLICAS = [
    SeenReplica("busy", "l4", 8, True, in_flight=4, remaining_s=40.0),
    SeenReplica("idle", "l4", 8, True),
    SeenReplica("some", "l4", 8, True, in_flight=1, remaining_s=5.0),
    SeenReplica("new", "l4", 8, False),
]


def test_the_replica_with_the_least_remaining_work_costs_least() -> None:
    assert [(each.agent, each.cost) for each in costs_of(REPLICAS)] == [("idle", 0), ("some", 1), ("busy", 2)]


def test_those_that_would_be_ended_are_named_where_fewer_are_wanted() -> None:

    facts = replace(L4, ready=3, starting=1)
    assert class_verdict(facts, 1, 1, 0.0, 0.0, REPLICAS).ends == ["idle", "some"]
    assert class_verdict(facts, 3, 3, 0.0, 0.0, REPLICAS).ends == []
    assert class_verdict(facts, 5, 5, 0.0, 0.0, REPLICAS).ends == []


def test_a_verdict_is_plain_json_with_the_sum_of_its_classes() -> None:
    classes = {"l4": class_verdict(L4, 2, 2, 1.5, 0.5, []), "h100": class_verdict(L4, 1, 1, 0.0, 0.0, [])}
    said = ModelVerdict("m", "because", True, 3, 4, classes).as_json()
    assert said["wanted"] == 3
    assert said["classes"]["l4"]["queued_gpu_s"] == 1.5
