"""The states of several processes are one."""

from typing import Any

import pytest

from gateway.api.admin.live.merging import merge_happenings, merge_states


def state(name: str, **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "agents": {"a": {"status": "ready", "streams": 2, "draining": False}},
        "deployments": {
            "a/d": {"slots": 3, "in_flight": 2, "health": 1.0, "usable": True, "status": "loaded"}
        },
        "models": {
            "m": {
                "waiting": 1,
                "slots": 3,
                "in_flight": 2,
                "deployments": 1,
                "oldest_s": 2.0,
                "tiers": {"batch": 1},
            }
        },
        "totals": {"running": 2, "waiting": 1, "begun": 10, "ended": 7, "failed": 0},
        "processes": {name: {"up": True}},
        "troubles": {},
    }
    return usual | more


def test_slots_and_requests_add_up_and_what_is_said_of_itself_does_not() -> None:
    other = state("p-2", troubles={"memory": True})
    other["deployments"]["a/d"]["health"] = 0.5
    other["models"]["m"]["tiers"] = {"batch": 1, "realtime": 2}
    other["models"]["n"] = {"waiting": 4, "slots": 0, "in_flight": 0, "deployments": 0}
    found = merge_states([state("p-1"), other], {"p-3": "it hangs"})
    assert found["agents"]["a"] == {"status": "ready", "streams": 4, "draining": False}
    one = found["deployments"]["a/d"]
    assert (one["slots"], one["in_flight"], one["health"], one["usable"]) == (6, 4, 0.5, True)
    m, n = found["models"]["m"], found["models"]["n"]
    assert (m["waiting"], m["slots"], m["deployments"], m["tiers"]) == (2, 6, 1, {"batch": 2, "realtime": 2})
    assert n["waiting"] == 4
    assert found["totals"] == {"running": 4, "waiting": 2, "begun": 20, "ended": 14, "failed": 0}
    assert found["processes"] == {
        "p-1": {"up": True},
        "p-2": {"up": True},
        "p-3": {"up": False, "why": "it hangs"},
    }
    assert found["troubles"] == {"memory": True}


def test_an_agent_that_is_connected_to_one_of_them_is_not_away() -> None:
    away = {"a": {"status": "away", "streams": 0, "draining": False}}
    for states in ([state("p"), state("q", agents=away)], [state("p", agents=away), state("q")]):
        found = merge_states(states, {})["agents"]["a"]
        assert (found["status"], found["streams"]) == ("ready", 2)


def test_of_what_happened_the_latest_is_told_and_the_rest_counted() -> None:
    def told(*at: float) -> dict[str, Any]:
        requests = [{"at": each} for each in at]
        flow = [{"ended": len(at)}]
        tokens = {"a/d": [len(at), 10]} if len(at) > 2 else {"a/d": [len(at), 10], "b/d": [1, 1]}
        return {"live": requests, "ended": requests, "left_out": 1, "flow": flow, "tokens": tokens}

    found = merge_happenings([told(1.0, 4.0), told(2.0, 3.0, 5.0)], 3, 1)
    assert [each["at"] for each in found["live"]] == [5.0, 4.0, 3.0]
    assert [each["at"] for each in found["ended"]] == [3.0, 4.0, 5.0]
    assert found["left_out"] == 1 + 1 + 2
    assert found["flow"] == [{"ended": 3}]
    assert found["tokens"] == {"a/d": [5, 20], "b/d": [1, 1]}
    earlier = told(1.0)
    del earlier["tokens"]
    assert merge_happenings([earlier, told(2.0)], 3, 1)["tokens"] == {"a/d": [1, 10], "b/d": [1, 1]}


@pytest.mark.parametrize("other", [{}, {"agents": 1}, state("q") | {"totals": {}}])
def test_what_is_no_state_is_an_error_that_the_asking_process_expects(other: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        merge_states([state("p"), other], {})
