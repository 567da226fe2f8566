"""Answers of the admin API in which every text that can come from outside is hostile, for tests of pages."""

from typing import Any

Json = dict[str, Any]

HOSTILE = (
    "<img src=x onerror=window.hit=1>",
    '"><script>window.hit=1</script>',
    "__proto__",
    "constructor",
    "javascript:window.hit=1",
    "{{7*7}}${window.hit=1}",
    "\u202egpj.exe\u0000\n=cmd|' /C calc'!A0",
)


def hostile_answers() -> dict[str, Json]:
    """For every page, by path."""
    return {**_of_requests(), **_of_jobs(), **_of_the_rest(), "/admin/whatif": _choices()}


def _of_requests() -> dict[str, Json]:
    request = {
        **dict.fromkeys(("model", "alias", "tenant", "key", "agent", "deployment", "route"), HOSTILE[0]),
        **{"id": HOSTILE[1], "at": 1790000000.0, "state": HOSTILE[0], "status": 500, "error": HOSTILE[1]},
        **{"tier": HOSTILE[0], "queued_s": 1.0, "first_byte_s": None, "total_s": 2.0, "attempts": 1},
        **{"tokens_in": None, "tokens_out": None, "slow": True, "streaming": True, "process": HOSTILE[0]},
    }
    named = {"code": HOSTILE[0], "words": HOSTILE[1]}
    candidate = {"deployment": HOSTILE[0], "chosen": False, "excluded": named, "slots": 1, "in_flight": 0}
    decision = {"deployment": HOSTILE[0], "why": named, "candidates": [candidate], "outcome": named}
    record = {**request, "words": list(HOSTILE), "decisions": [decision], "queue": {"reasons": [named]}}
    listed = {"requests": [request], "next": None, "kept": {}, "why_missing": {HOSTILE[0]: "x"}}
    return {"/admin/requests": listed, f"/admin/requests/{HOSTILE[1]}": record}


def _of_jobs() -> dict[str, Json]:
    whose = {"tenant": HOSTILE[0], "key": HOSTILE[1], "key_id": HOSTILE[2], "custom_id": HOSTILE[0]}
    job = {
        **whose,
        **{"id": HOSTILE[0], "status": "failed", "model": HOSTILE[1], "error": HOSTILE[0]},
        **{"created_at": 1, "finished_at": 2, "attempts": 1, "progress": None, "predicted_cost": None},
    }
    running = job | {"id": HOSTILE[1], "status": "running", "progress": 0.5, "progress_text": HOSTILE[0]}
    batch = {
        **whose,
        **{"id": HOSTILE[0], "status": "failed", "endpoint": HOSTILE[1], "errors": list(HOSTILE)},
        **{"request_counts": {"total": 0, "completed": 0, "failed": 0}, "created_at": 1, "failed_at": 2},
    }
    return {
        "/admin/jobs": {"jobs": [job, running], "next": HOSTILE[0]},
        "/admin/batches": {"batches": [batch], "next": None},
    }


def _of_the_rest() -> dict[str, Json]:
    target = {"model": HOSTILE[0], "version": HOSTILE[1], "weight": 1.0, "share": 1.0}
    alias = {"name": HOSTILE[0], "targets": [target], "changed_s": 1.0, "mirror": None, "fallback": [target]}
    key = {"id": "1", "name": HOSTILE[0], "tenant": HOSTILE[1], "state": "active", "models": list(HOSTILE)}
    counted = ("requests", "prompt_tokens", "completion_tokens", "gpu_s", "cost")
    used = {**dict.fromkeys(counted, 1), "cached_tokens": 0}
    engine: Json = {"name": HOSTILE[0], "kind": HOSTILE[1], "status": "failed", "reason": HOSTILE[0]}
    engine["models"] = HOSTILE
    agents = [{"name": name, "connected": True, "models": HOSTILE, "engines": [engine]} for name in HOSTILE]
    return {
        "/admin/aliases": {"aliases": [alias]},
        "/admin/keys": {"keys": [key]},
        "/admin/tenants": {"tenants": [{"name": HOSTILE[0], "changed_s": 1.0}]},
        "/admin/tokens": {"tokens": []},
        "/admin/settings": {"settings": [{"path": HOSTILE[0], "value": HOSTILE[1], "set": True}]},
        "/admin/usage": {"usage": [{"tenant": name, **used} for name in HOSTILE], "next": None},
        "/admin/agents": {"agents": agents},
    }


def _choices() -> Json:
    model = {"slots": 1, "deployments": 1, "devices": {HOSTILE[0]: 1}, "policy": HOSTILE[1]}
    return {
        "models": [{"model": name, **model} for name in HOSTILE[:2]],
        "policies": list(HOSTILE),
        "policy": HOSTILE[0],
        "devices": [{"device": HOSTILE[1]}],
        "queue": {"max_requests": 1, "max_wait_s": 1},
        "level": {"first_token_s": 2, "token_s": 0.1},
        "limits": {"deployments": 10},
    }


def hostile_whatif() -> Json:
    """The result of a what-if."""
    ranks = {"p50": 1.0, "p90": 2.0, "p99": 3.0}
    figures: Json = dict.fromkeys(("requests", "answered", "refused", "failed", "cancelled"), 1)
    figures |= dict.fromkeys(("slo_kept", "utilisation", "deployments", "slots", "gpu_hours", "cost"), 1)
    figures |= {"first_token_s": ranks, "queued_s": ranks, "output_tokens_per_s": 1.0}
    three = dict.fromkeys(("measured", "before", "after"), figures)
    names = ("first_token_p50_s", "first_token_p90_s", "queued_p90_s", "output_tokens_per_s")
    course = {name: [1.0, None, 2.0] for name in names}
    speed = dict.fromkeys(("device", "model", "origin", "words"), HOSTILE[0])
    rates = dict.fromkeys(("before", "after", "tokens_per_s", "prompt_tokens_per_s"), 1)
    return {
        **{"from": 1790000000.0, "until": 1790003600.0, "requests": 1, "source": HOSTILE[0], "total": three},
        **{"left_out": [{"code": HOSTILE[0], "requests": 1, "words": HOSTILE[1]}], "notes": list(HOSTILE)},
        **{"changes": list(HOSTILE), "models": [{"model": name, **three} for name in HOSTILE]},
        "series": {"from": 1790000000.0, "step_s": 60, **dict.fromkeys(three, course)},
        "speeds": [{**speed, **rates}],
    }


def hostile_changes() -> list[Json]:
    """One change of state."""
    name, other = HOSTILE[:2]
    return [{"at": 1.0, "of": "agent", "name": name, "from": other, "to": name, "why": other}]


def hostile_snapshot() -> Json:
    """What the stream of live events begins with."""
    agents, deployments, models = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for name in HOSTILE:
        gpu = {"name": name, "memory_total_bytes": 1, "memory_used_bytes": 1, "temperature_c": 99}
        agents[name] = {"status": name, "reason": name, "labels": {name: name}, "gpus": {"0": gpu}}
        deployments[f"{name}/e/{name}"] = {
            **{"agent": name, "model": name, "version": name, "status": "failed", "reason": name},
            **{"slots": 1, "in_flight": 1, "managed": True},
        }
        models[name] = {"waiting": 5, "oldest_s": 50, "slots": 0, "in_flight": 0, "deployments": 1}
    return {
        **{"at": 1790000000.0, "process": HOSTILE[0]},
        **{"processes": {HOSTILE[1]: {"up": False, "why": HOSTILE[0]}}, "troubles": {HOSTILE[0]: True}},
        **{"agents": agents, "deployments": deployments, "models": models},
        **{"totals": {"running": 1, "waiting": 1, "begun": 1, "ended": 1, "failed": 1}},
        **{"requests": [], "changes": hostile_changes()},
    }
