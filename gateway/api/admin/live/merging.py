"""The states of several processes as one. Pure.

An agent has a session with each process and lends its slots to them, so slots and requests add up; what an
agent says of itself is the same everywhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.admin.live.patch import Json


def merge_states(states: Sequence[Mapping[str, Any]], silent: Mapping[str, str]) -> Json:
    """``states`` as one, the asking process's own first; ``silent`` are processes that did not answer, and
    why. Raises KeyError, TypeError, ValueError and AttributeError for what is no state."""
    first = states[0]
    found: Json = {name: first[name] for name in ("agents", "deployments", "models", "totals")}
    for state in states[1:]:
        found["agents"] = _joined(found["agents"], state["agents"], _agent)
        found["deployments"] = _joined(found["deployments"], state["deployments"], _deployment)
        found["models"] = _joined(found["models"], state["models"], _model)
        found["totals"] = {
            name: count + int(state["totals"][name]) for name, count in found["totals"].items()
        }
    processes = {name: facts for state in states for name, facts in state["processes"].items()}
    processes |= {name: {"up": False, "why": why} for name, why in silent.items()}
    troubles = {name: True for state in states for name in state["troubles"]}
    return found | {"processes": processes, "troubles": troubles}


def merge_happenings(told: Sequence[Mapping[str, Any]], most: int, most_flows: int) -> Json:
    """What happened to requests at all processes: the latest ``most`` of those that are not over, and of
    those that are."""
    live = sorted((each for one in told for each in one["live"]), key=_arrival, reverse=True)[:most]
    ended = sorted((each for one in told for each in one["ended"]), key=_arrival)
    left_out = sum(int(one["left_out"]) for one in told) + max(0, len(ended) - most)
    flow = sorted((each for one in told for each in one["flow"]), key=lambda each: -int(each["ended"]))
    tokens: dict[str, list[int]] = {}
    for one in told:
        for name, (prompt, completion) in one.get("tokens", {}).items():  # earlier versions do not tell it
            counts = tokens.setdefault(name, [0, 0])
            counts[0] += int(prompt)
            counts[1] += int(completion)
    found = {"live": live, "ended": ended[-most:], "left_out": left_out, "flow": flow[:most_flows]}
    return found | {"tokens": tokens}


def _arrival(request: Mapping[str, Any]) -> float:
    return float(request["at"])


def _joined(one: Json, other: Json, join: Any) -> Json:
    found = dict(one)
    for name, facts in other.items():
        known = found.get(name)
        found[name] = facts if known is None else join(known, facts)
    return found


def _added(one: Json, other: Json, names: Sequence[str]) -> Json:
    return {
        name: one.get(name, 0) + int(other.get(name, 0)) for name in names if name in one or name in other
    }


def _agent(one: Json, other: Json) -> Json:
    if one["status"] == "away":
        return other
    return one if other["status"] == "away" else one | _added(one, other, ("streams",))


def _deployment(one: Json, other: Json) -> Json:
    health = min(one["health"], other["health"])
    usable = one["usable"] or other["usable"]
    return one | _added(one, other, ("slots", "in_flight")) | {"health": health, "usable": usable}


def _model(one: Json, other: Json) -> Json:
    found = one | _added(one, other, ("waiting", "slots", "in_flight"))
    found["deployments"] = max(one["deployments"], other["deployments"])
    if "oldest_s" in one or "oldest_s" in other:
        found["oldest_s"] = max(one.get("oldest_s", 0.0), other.get("oldest_s", 0.0))
    tiers = {**one.get("tiers", {})}
    for tier, count in other.get("tiers", {}).items():
        tiers[tier] = tiers.get(tier, 0) + int(count)
    return found | ({"tiers": tiers} if tiers else {})
