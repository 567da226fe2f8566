"""State, rates and percentiles, as events make them."""

from typing import Any

import pytest

from gateway.tools.top import live_fleet as module
from gateway.tools.top.live_fleet import LiveFleet

Json = dict[str, Any]
NOW_S = 1_790_000_000.0


def snapshot(**more: Any) -> Json:
    deployments = {"a/v/m": {"agent": "a", "model": "m", "gpus": "1"}, "b/v/m": {"agent": "b", "model": "m"}}
    gpus = {"0": {"name": "zero"}, "1": {"name": "one"}}
    return {
        "at": NOW_S,
        "process": "p",
        "agents": {"a": {"gpus": gpus}, "b": {"gpus": gpus}},
        "deployments": deployments,
        "totals": {"ended": 100},
        **more,
    }


def ended(id_: str, at_s: float, **more: Any) -> Json:
    known = {"process": "p", "state": "answered", "total_s": 1.0, "model": "m", "deployment": "a/v/m"}
    return {"id": id_, "at": at_s, "streaming": True, "first_byte_s": 0.5, "tokens_out": 30, **known, **more}


@pytest.fixture
def fleet() -> LiveFleet:
    made = LiveFleet()
    assert not made.take("delta", {"at": NOW_S})
    assert made.take("snapshot", snapshot())
    return made


def test_a_delta_is_merged_into_the_state_and_what_happened_is_no_part_of_it(fleet: LiveFleet) -> None:
    assert fleet.take(
        "delta",
        {
            "at": NOW_S + 1,
            "deployments": {"a/v/m": {"in_flight": 3}, "b/v/m": None},
            "totals": {"ended": 110},
            "requests_left_out": 2,
            "flow": [{}],
            "changes": [{"name": "b"}],
        },
    )
    assert fleet.deployments == {"a/v/m": {"agent": "a", "model": "m", "gpus": "1", "in_flight": 3}}
    assert (fleet.at_s, fleet.left_out, list(fleet.changes)) == (NOW_S + 1, 2, [{"name": "b"}])
    assert fleet.requests_per_s == 10
    assert not fleet.state.keys() & {"flow", "changes", "requests_left_out"}
    assert not fleet.take("dropped", {"frames": 3})


def test_rates_are_of_the_last_half_minute_and_add_up_by_model(fleet: LiveFleet) -> None:
    fleet.fill([], recent=True)
    tokens = {"a/v/m": [100, 30], "b/v/m": [50, 60], "gone": [1, 300]}
    fleet.take("delta", {"at": NOW_S + 1, "tokens": tokens})
    assert fleet.rates.of("a/v/m") == pytest.approx((100 / 30, 1.0))
    assert fleet.rates.of_models(fleet.deployments)["m"] == pytest.approx((5.0, 3.0))
    assert fleet.rates.total()[1] == pytest.approx(13.0)
    fleet.take("delta", {"at": NOW_S + 30.5})
    assert fleet.rates.of("a/v/m")[1] == 1.0
    fleet.take("delta", {"at": NOW_S + 31})
    assert fleet.rates.total() == (0.0, 0.0)


def test_a_gateway_that_tells_no_tokens_has_those_of_its_requests_counted(fleet: LiveFleet) -> None:
    fleet.fill([ended("old", NOW_S - 11, tokens_in=300)], recent=True)
    fleet.take("delta", {"at": NOW_S + 1, "requests": [ended("new", NOW_S)]})
    fleet.take("delta", {"at": NOW_S + 2, "requests": [ended("new", NOW_S)]})
    assert fleet.rates.of("a/v/m") == (10.0, 2.0)
    fleet.take("delta", {"at": NOW_S + 3, "requests": [ended("told", NOW_S)], "tokens": {"a/v/m": [0, 30]}})
    assert fleet.rates.of("a/v/m") == (10.0, 3.0)


def test_what_the_stream_will_tell_again_is_not_counted_when_it_is_listed(fleet: LiveFleet) -> None:
    fleet.fill([ended("late", NOW_S - 0.5)], recent=True)
    fleet.take(
        "delta", {"at": NOW_S + 1, "requests": [ended("late", NOW_S - 0.5)], "tokens": {"a/v/m": [0, 30]}}
    )
    assert fleet.rates.of("a/v/m")[1] == 1.0


def test_percentiles_are_of_streams_of_the_last_minutes(fleet: LiveFleet) -> None:
    requests = [ended(f"r{n}", NOW_S - 100 + n, first_byte_s=n / 100) for n in range(100)]
    whole = ended("unary", NOW_S - 2, streaming=False, first_byte_s=99.0)
    fleet.fill([*reversed(requests), whole], recent=True)
    fleet.fill([ended("slow", NOW_S - 200, first_byte_s=50.0, slow=True)], recent=False)
    assert fleet.first_tokens.percentiles("m", NOW_S, (0.5, 0.95)) == [0.5, 0.95]
    assert fleet.first_tokens.percentiles("other", NOW_S, (0.5,)) is None
    later_s = NOW_S - 50 + module.TIMES_S
    assert fleet.first_tokens.percentiles("m", later_s, (0.0,)) == [0.5]
    assert fleet.first_tokens.percentiles("m", later_s + 100, (0.5,)) is None


def test_requests_go_from_waiting_to_running_to_their_end(fleet: LiveFleet) -> None:
    live = {"id": "r", "process": "p", "at": NOW_S}
    book = fleet.requests
    for state, kind in (("queued", "waiting"), ("running", "running")):
        fleet.take("delta", {"at": NOW_S, "requests": [live | {"state": state}]})
        assert [each["id"] for _, each in book.of(kind)] == ["r"]
    assert not list(book.of("waiting"))
    fleet.take("delta", {"at": NOW_S, "requests": [ended("r", NOW_S, state="failed", slow=True)]})
    assert not book.live
    for kind in ("all", "slow", "failed"):
        assert [each["id"] for _, each in book.of(kind)] == ["r"]


def test_slow_and_failed_requests_outlast_the_others_and_all_are_bounded(
    fleet: LiveFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_REQUESTS", 2)
    monkeypatch.setattr(module, "MOST_KEPT", 1)
    for n in range(5):
        fleet.requests.note(ended(f"r{n}", NOW_S + n, state="failed" if n < 2 else "answered"))
    assert [each["id"] for _, each in fleet.requests.of("all")] == ["r3", "r4"]
    assert [each["id"] for _, each in fleet.requests.of("failed")] == ["r1"]


def test_another_snapshot_replaces_what_waits_and_runs(fleet: LiveFleet) -> None:
    fleet.take("delta", {"at": NOW_S, "requests": [{"id": "r", "state": "running"}], "requests_left_out": 1})
    fleet.take("snapshot", snapshot(requests=[{"id": "s", "state": "queued"}]))
    assert [each["id"] for each in fleet.requests.live.values()] == ["s"]
    assert fleet.left_out == 0


def test_processes_that_do_not_answer_and_troubles_are_named(fleet: LiveFleet) -> None:
    processes = {"p": {"up": True}, "q": {"up": False, "why": "it hangs"}}
    fleet.take("delta", {"at": NOW_S, "processes": processes, "troubles": {"memory": True}})
    assert fleet.silent_processes() == {"q": "it hangs"}
    assert fleet.troubles() == ["memory"]


def test_gpus_are_those_of_the_deployment_or_all_of_its_agent(fleet: LiveFleet) -> None:
    gpus = [[gpu["name"] for gpu in fleet.gpus_of(each)] for each in fleet.deployments.values()]
    assert gpus == [["one"], ["zero", "one"]]
    assert fleet.gpus_of({"agent": "unknown"}) == []
