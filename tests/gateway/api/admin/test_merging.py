"""What several workers know of the same things becomes one."""

from gateway.api.admin.merging import merge_agents, merge_models, merge_queue
from gateway.api.admin.resources.resource import Json


def agent(name: str, **facts: object) -> Json:
    connected = {"connected": True, "streams": 2, "draining": False, "rtt_s": 0.2, "connected_for_s": 5.0}
    return {"name": name, "id": "x"} | connected | facts


def model(name: str, *deployments: Json, **facts: object) -> Json:
    base: Json = {"id": name, "ready": True, "routes": ["chat"], "waiting": 1, "loadable": 0}
    slots, in_flight = (sum(each[key] for each in deployments) for key in ("slots", "in_flight"))
    return base | {"slots": slots, "in_flight": in_flight, "deployments": list(deployments)} | facts


def deployment(where: str, slots: int, in_flight: int, *, healthy: bool = True) -> Json:
    return {"agent": where, "version": None, "slots": slots, "in_flight": in_flight, "healthy": healthy}


def test_requests_of_an_agent_add_up_and_a_hold_anywhere_shows() -> None:
    pages = [
        {"agents": [agent("a"), {"name": "b", "connected": False}]},
        {"agents": [agent("a", streams=3, rtt_s=None, draining=True, connected_for_s=9.0), agent("b")]},
    ]
    one, two = merge_agents(pages)["agents"]
    assert one == agent("a", streams=5, draining=True, rtt_s=0.2, connected_for_s=9.0)
    assert two == agent("b"), "it is connected somewhere"


def test_agents_that_are_nowhere_stay_so() -> None:
    away: Json = {"name": "a", "connected": False}
    assert merge_agents([{"agents": [away]}, {"agents": [away]}]) == {"agents": [away]}


def test_slots_that_an_agent_lends_to_each_add_up() -> None:
    pages = [
        {"models": [model("m", deployment("a", 3, 2), routes=["chat", "embeddings"])]},
        {"models": [model("m", deployment("a", 1, 1, healthy=False), deployment("b", 4, 0)), model("n")]},
    ]
    merged, other = merge_models(pages)["models"]
    assert (merged["slots"], merged["in_flight"], merged["waiting"]) == (8, 3, 2)
    assert merged["routes"] == ["chat", "embeddings"]
    assert merged["deployments"] == [deployment("a", 4, 3, healthy=False), deployment("b", 4, 0)]
    assert other["id"] == "n"


def test_two_deployments_of_a_model_at_one_agent_stay_two() -> None:
    one, two = ({"deployment": f"a/{engine}/m"} | deployment("a", 2, 1) for engine in ("e", "f"))
    (merged,) = merge_models([{"models": [model("m", one, two)]}, {"models": [model("m", one, two)]}])[
        "models"
    ]
    both = {"slots": 4, "in_flight": 2}
    assert merged["deployments"] == [one | both, two | both]


def test_what_waits_adds_up() -> None:
    pages = [{"waiting": 3, "models": {"n": 1, "m": 2}}, {"waiting": 1, "models": {"m": 1}}]
    assert merge_queue(pages) == {"waiting": 4, "models": {"m": 3, "n": 1}}
