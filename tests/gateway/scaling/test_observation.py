"""What one process sees of each model, and what several see together."""

import orjson

from gateway.domain.request import Tier
from gateway.domain.slices import run_at_once
from gateway.scaling.observation import SeenModel, SeenReplica, from_json, merge, observe, to_json
from shared.protocol.messages import DeploymentStatus, Drain
from tests.gateway.fleet.fleet import Fleet, deployment


def see(fleet: Fleet) -> dict[str, SeenModel]:
    return run_at_once(observe(fleet.dispatcher, fleet.loop.time()))


def test_replicas_are_agents_that_serve_the_model_and_those_that_load_it() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment("m", slots=4, device="NVIDIA L4"))
    fleet.connect("b", deployment("m", slots=0, status=DeploymentStatus.LOADING))
    found = see(fleet)["m"].replicas
    assert {name: (each.device, each.slots, each.ready) for name, each in found.items()} == {
        "a": ("l4", 4, True),
        "b": ("unknown", 0, False),
    }


def test_what_runs_and_what_waits_is_counted_batch_apart() -> None:
    fleet = Fleet()
    fleet.connect("a", deployment("m", slots=1))
    for tier in (Tier.STANDARD, Tier.STANDARD, Tier.BATCH):
        fleet.submit(fleet.request(tier=tier))
    found = see(fleet)["m"]
    assert (found.in_flight, found.waiting, found.batch_waiting) == (1, 1, 1)
    assert found.per_s > 0
    assert found.idle_s < 1


def test_who_drains_is_no_replica() -> None:
    fleet = Fleet()
    agent = fleet.connect("a", deployment("m", slots=1))
    fleet.connect("b", deployment("m", slots=1))
    agent.endpoint.send_drain(Drain("it stops", 30.0))
    fleet.settle()
    assert set(see(fleet)["m"].replicas) == {"b"}


def test_what_another_process_says_comes_over_as_it_was_said() -> None:
    seen = {"m": SeenModel(per_s=2.0, replicas={"a": SeenReplica("a", "l4", 4, True)}), "n": SeenModel()}
    assert from_json(orjson.loads(orjson.dumps(to_json(seen)))) == seen


def test_members_of_a_later_version_are_left_out() -> None:
    said = to_json({"m": SeenModel()})
    said["models"]["m"]["more"] = 1
    assert from_json(said) == {"m": SeenModel()}


def test_requests_add_up_over_processes_and_replicas_are_counted_once() -> None:
    here = SeenModel(
        1.0, 0.1, 5.0, 100.0, 10.0, known=30, waiting=2, hold_s=2.0,
        replicas={"a": SeenReplica("a", "l4", 4, True, in_flight=1, remaining_s=3.0)},
    )  # fmt: skip
    there = SeenModel(
        2.0, 0.0, 1.0, 400.0, 40.0, known=10, waiting=3, hold_s=4.0,
        replicas={
            "a": SeenReplica("a", "l4", 6, True, in_flight=2, remaining_s=1.0),
            "b": SeenReplica("b", "l4", 4, False),
        },
    )  # fmt: skip
    both = merge([{"m": here}, {"m": there, "n": SeenModel()}])
    found = both["m"]
    assert (found.per_s, found.idle_s, found.waiting, found.hold_s) == (3.0, 1.0, 5, 3.0)
    assert (found.input_tokens, found.output_tokens, found.known) == (175.0, 17.5, 40)
    assert (found.replicas["a"].in_flight, found.replicas["a"].slots) == (3, 6)
    assert found.replicas["a"].remaining_s == 4.0
    assert set(found.replicas) == {"a", "b"}
    assert both["n"] == SeenModel()
    assert here.replicas["a"].in_flight == 1, "what was seen here is not changed"


def test_a_process_that_does_not_tell_of_the_latest_seconds_counts_with_its_minute() -> None:
    said = to_json({"m": SeenModel(per_s=2.0, piece_per_s=9.0)})
    del said["models"]["m"]["piece_per_s"]
    (before,) = from_json(said).values()
    assert before.piece_per_s is None
    found = merge([{"m": SeenModel(per_s=1.0, piece_per_s=4.0)}, {"m": before}])["m"]
    assert found.piece_per_s == 6.0
