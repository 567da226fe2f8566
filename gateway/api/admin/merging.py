"""What several workers know of the same agents, models and queues, as one. Pure.

An agent has a session with each worker and lends its slots to them, so slots and requests add up; what an
agent says of itself is the same everywhere.
"""

from collections.abc import Callable, Iterable, Sequence

from gateway.api.admin.resources.resource import Json


def merge_agents(pages: Sequence[Json]) -> Json:
    """Answers of ``GET /admin/agents``."""
    return {"agents": _by_name((each for page in pages for each in page["agents"]), "name", _agent)}


def merge_models(pages: Sequence[Json]) -> Json:
    """Answers of ``GET /admin/models``."""
    return {"models": _by_name((each for page in pages for each in page["models"]), "id", _model)}


def merge_queue(pages: Sequence[Json]) -> Json:
    """Answers of ``GET /admin/queue``."""
    models: dict[str, int] = {}
    for page in pages:
        for model, waiting in page["models"].items():
            models[model] = models.get(model, 0) + waiting
    return {"waiting": sum(page["waiting"] for page in pages), "models": dict(sorted(models.items()))}


def _by_name(found: Iterable[Json], key: str, merge: Callable[[list[Json]], Json]) -> list[Json]:
    groups: dict[str, list[Json]] = {}
    for each in found:
        groups.setdefault(each[key], []).append(each)
    return [merge(groups[name]) for name in sorted(groups)]


def _agent(known: list[Json]) -> Json:
    connected = [each for each in known if each["connected"]]
    if not connected:
        return known[0]
    rtts_s = [each["rtt_s"] for each in connected if each["rtt_s"] is not None]
    return connected[0] | {
        "streams": sum(each["streams"] for each in connected),
        "draining": any(each["draining"] for each in connected),
        "rtt_s": min(rtts_s, default=None),
        "connected_for_s": max(each["connected_for_s"] for each in connected),
    }


def _model(known: list[Json]) -> Json:
    deployments: dict[object, Json] = {}
    for each in (deployment for model in known for deployment in model["deployments"]):
        place = each.get("deployment") or (each["agent"], each["version"])  # earlier processes tell no key
        same = deployments.get(place)
        deployments[place] = each if same is None else _deployment(same, each)
    return known[0] | {
        "ready": any(each["ready"] for each in known),
        "routes": sorted({route for each in known for route in each["routes"]}),
        "waiting": sum(each["waiting"] for each in known),
        "slots": sum(each["slots"] for each in known),
        "in_flight": sum(each["in_flight"] for each in known),
        "loadable": max(each["loadable"] for each in known),
        "deployments": list(deployments.values()),
    }


def _deployment(one: Json, other: Json) -> Json:
    return one | {
        "slots": one["slots"] + other["slots"],
        "in_flight": one["in_flight"] + other["in_flight"],
        "healthy": one["healthy"] and other["healthy"],
    }
