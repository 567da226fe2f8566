"""Facts and a fleet for what-ifs."""

from typing import Any

from gateway.domain.request import Tier
from gateway.tools.whatif.facts import ReplayFact
from gateway.tools.whatif.fleet import FleetNow, read_fleet
from gateway.tools.whatif.recording import ReplayRecording

BEGIN_S = 1_790_000_000.0
"""2026-09-21 12:53:20 UTC."""


def fact(after_s: float = 0.0, **more: Any) -> ReplayFact:
    """Of a request that was answered within a second, so long after the beginning."""
    usual: dict[str, Any] = {
        **{"at_s": BEGIN_S + after_s, "model": "m", "tier": Tier.STANDARD, "tenant": "acme"},
        **{"outcome": "answered", "total_s": 1.0, "first_s": 0.2, "queued_s": 0.1},
        **{"tokens_in": 100, "tokens_out": 20, "deployment": "a/1", "gpu_s": 0.5},
    }
    return ReplayFact(**{**usual, **more})


def recording(facts: list[ReplayFact], span_s: float = 60.0, seen: int | None = None) -> ReplayRecording:
    return ReplayRecording(
        facts, BEGIN_S, BEGIN_S + span_s, len(facts) if seen is None else seen, {}, "a test"
    )


def learnt(model: str = "m", device: str = "h100", answers: int = 100, times: float = 1.0) -> dict[str, Any]:
    """A model that is so many times slower than one of 8 billion parameters."""
    return {
        **{"model": model, "device": device, "answers": answers},
        **{"reading": [times, times, times, 0.02 * times], "writing": [times] * 4},
        **{"reading_common": times, "writing_common": times},
    }


def deployment(number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "key": f"a/{number}",
        "model": "m",
        "device": "h100",
        "slots": 2,
        "rtt_s": 0.002,
        "kv_tokens": None,
        **more,
    }


def fleet_json(*deployments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """As a gateway tells it."""
    return {
        "deployments": list(deployments or (deployment(),)),
        "speeds": [learnt()],
        "policy": "cost",
        "policies": {},
        "queue": {"max_requests": 1000, "max_wait_s": 60.0, "ageing_s": 20.0, "weights": {}},
        "gpu_hour": {},
        "elsewhere": [],
        **more,
    }


def fleet(*deployments: dict[str, Any], **more: Any) -> FleetNow:
    return read_fleet(fleet_json(*deployments, **more))
