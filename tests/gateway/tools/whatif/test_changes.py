"""What is asked for becomes a second plan; what cannot be is refused with the member that says it."""

from typing import Any

import pytest

from gateway.api.admin.whatif_body import WhatIfBody
from gateway.tools.simulate.inputs import BadSpec
from gateway.tools.whatif.changes import planned
from gateway.tools.whatif.fleet import FleetNow
from gateway.tools.whatif.speeds import SpeedOrigin
from tests.gateway.tools.whatif.kit import deployment, fleet

BOTH = (deployment(1, slots=16), deployment(2, slots=16), deployment(3, model="n", device="l4", slots=4))


def body(**members: Any) -> WhatIfBody:
    return WhatIfBody.model_validate(members)


def test_nothing_asked_for_changes_nothing() -> None:
    change = planned(fleet(*BOTH), body())
    assert change.before == change.after
    assert change.words == ()


def test_more_and_fewer_deployments_other_slots_and_another_policy() -> None:
    change = planned(
        fleet(*BOTH),
        body(
            add=[{"device": "NVIDIA L4", "count": 2, "model": "m"}],
            remove=[{"model": "m", "device": "h100"}],
            slots={"n": 9},
            policy="round-robin",
            scale=2.0,
            max_requests=5,
            max_wait_s=7.5,
        ),
    )
    after = change.after
    assert [each.device for each in after.deployments["m"]] == ["h100", "l4", "l4"]
    assert [each.slots for each in after.deployments["n"]] == [9]
    assert (after.policy_of("m"), after.scale) == ("round-robin", 2.0)
    assert (after.queue.max_requests, after.queue.max_wait_s) == (5, 7.5)
    assert (change.before.policy_of("m"), len(change.words)) == ("cost", 7)


def test_slots_of_an_unknown_class_follow_the_memory_and_that_is_said() -> None:
    change = planned(fleet(*BOTH), body(add=[{"device": "l4", "model": "m"}]))
    added = change.after.deployments["m"][-1]
    assert (added.slots, added.speeds.origin) == (4, SpeedOrigin.SCALED)  # 16 x 24 / 80
    assert any("by the memory of both" in each for each in change.notes)
    alike = planned(fleet(*BOTH), body(add=[{"model": "m"}])).after.deployments["m"][-1]
    assert (alike.device, alike.slots) == ("h100", 16)


def test_prices_are_those_that_somebody_said() -> None:
    priced = fleet(*BOTH, gpu_hour={"m": 2.0})
    change = planned(priced, body(add=[{"device": "l4", "model": "m"}, {"model": "m"}], gpu_hour=0.5))
    assert [each.gpu_hour for each in change.after.deployments["m"]] == [2.0, 2.0, 0.5, 2.0]
    assert change.before.deployments["n"][0].gpu_hour == 0.5
    assert planned(fleet(*BOTH), body()).before.deployments["m"][0].gpu_hour is None


@pytest.mark.parametrize(
    ("members", "option", "words"),
    [
        ({"add": [{"device": "l4"}]}, "add", r"say of which model .*2\*l4@m\); there are: m, n"),
        ({"add": [{"device": "l4", "model": "x"}]}, "add", "nothing serves a model 'x' now"),
        ({"add": [{"device": "my-npu", "model": "m"}]}, "add", "nothing is known of a device 'my-npu'"),
        ({"remove": [{"model": "m", "count": 2}]}, "remove", "no deployment of m would be left"),
        ({"remove": [{"model": "m", "device": "l4"}]}, "remove", "m has 0 deployments on l4, not 1"),
        ({"slots": {"x": 2}}, "slots", "nothing serves a model 'x' now"),
        ({"policy": "best"}, "policy", "no policy is called 'best'"),
    ],
)
def test_what_cannot_be_is_refused(members: dict[str, Any], option: str, words: str) -> None:
    with pytest.raises(BadSpec, match=words) as caught:
        planned(fleet(*BOTH), body(**members))
    assert caught.value.option == option


def test_an_unknown_device_may_be_added_with_its_speed() -> None:
    known: FleetNow = fleet(*BOTH)
    added = {"device": "my-npu", "model": "m", "tokens_per_s": 30.0}
    change = planned(known, body(add=[added]))
    assert change.after.deployments["m"][-1].speeds.tokens_per_s == pytest.approx(30.0)
