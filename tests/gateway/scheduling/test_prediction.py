"""What a record says was predicted is what the policy compared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.decisions.decision import candidate_of
from gateway.scheduling.policies.completion import Completion
from gateway.scheduling.prediction import predict
from tests.gateway.scheduling.views import H100, L4, CostFleet, request, view

CHAIN = tuple(range(40))


@given(
    data=st.data(),
    device=st.sampled_from([H100, L4, "a thing of which nobody heard"]),
    loaded=st.booleans(),
    load_s=st.none() | st.floats(0, 100),
    health=st.sampled_from([1.0, 0.25]),
    cached=st.booleans(),
    ttft_s=st.none() | st.floats(0, 300),
)
def test_the_parts_add_up_to_what_the_policy_cost_compared(
    data: st.DataObject,
    device: str,
    loaded: bool,
    load_s: float | None,
    health: float,
    cached: bool,
    ttft_s: float | None,
) -> None:
    one = view("a/d", 64, device=device)
    one.loaded, one.load_s, one.health_factor, one.rtt_s = loaded, load_s, health, 0.003
    fleet = CostFleet(one)
    knowledge = fleet.scheduler.models["m"].knowledge
    if cached:
        knowledge.prefixes.note_read("a/d", CHAIN)
    for number in range(data.draw(st.integers(0, 5))):
        fleet.place(request(100 + number, data.draw(st.integers(1, 20_000)), 50), "a/d")
        fleet.now += data.draw(st.floats(0, 2))
    item = request(
        1, data.draw(st.integers(1, 20_000)), data.draw(st.integers(0, 2000)), prefix=CHAIN, ttft_s=ttft_s
    )
    compared_s = Completion(item, knowledge, {}, fleet.now).cost_s(one, knowledge.cached_tokens(item, "a/d"))
    noted = candidate_of(one, None, item, knowledge)
    slack_s = None if ttft_s is None else item.arrived_s + ttft_s - fleet.now
    found = predict(noted, item.input_tokens, item.output_tokens, fleet.now, slack_s)
    assert found.weighed_s == pytest.approx(compared_s)
    assert found.total_s == pytest.approx(found.first_token_s + found.decode_s)
    assert min(found) >= 0 or found.others_s < 0, (
        "what is cached may spare others more than writing costs them"
    )
    placed = fleet.scheduler.placed(item, one, fleet.now)
    assert found.first_token_s - found.transfer_s == pytest.approx(placed.first_token_s)
    assert found.total_s - found.transfer_s == pytest.approx(placed.total_s)


def test_what_is_learnt_later_changes_no_record() -> None:
    one = view("a/d", 64)
    fleet = CostFleet(one)
    knowledge = fleet.scheduler.models["m"].knowledge
    item = request(1)
    noted = candidate_of(one, None, item, knowledge)
    before = predict(noted, 1000, 100, fleet.now)
    knowledge.speeds(one).borrow(3.0, 3.0)
    fleet.place(request(2, 20_000), "a/d")
    assert predict(noted, 1000, 100, fleet.now) == before
    assert predict(candidate_of(one, None, item, knowledge), 1000, 100, fleet.now) != before
