"""How busy an engine says it is: reading ``/metrics``. Pure.

One regular expression goes over the text; the hundreds of histogram lines between are never taken apart.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_RUNNING = (
    b"vllm:num_requests_running",
    b"sglang:num_running_reqs",
    b"tgi_batch_current_size",
    b"llamacpp:requests_processing",
    b"trunkline_engine_requests_running",
)
_WAITING = (
    b"vllm:num_requests_waiting",
    b"sglang:num_queue_reqs",
    b"tgi_queue_size",
    b"llamacpp:requests_deferred",
    b"trunkline_engine_requests_waiting",
)
_KV_USE = (
    b"vllm:kv_cache_usage_perc",
    b"vllm:gpu_cache_usage_perc",  # its name before 2025
    b"sglang:token_usage",
    b"llamacpp:kv_cache_usage_ratio",
    b"trunkline_engine_kv_use",
)
_SAMPLE = re.compile(
    rb"^(?:(?P<running>%s)|(?P<waiting>%s)|(?P<kv>%s))(?:\{(?P<labels>[^}\n]*)\})?[ \t]+(?P<value>[^\s]+)"
    % (b"|".join(_RUNNING), b"|".join(_WAITING), b"|".join(_KV_USE)),
    re.MULTILINE,
)
_MODEL = re.compile(rb'(?:^|,)\s*model_name="([^"]*)"')
_COUNT_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in the engine's batch and in its queue, whoever sent them; share of its KV memory in use."""

    running: int = 0
    waiting: int = 0
    kv_use: float | None = None

    def __add__(self, other: "Load") -> "Load":
        """Of several replicas or models in one engine: counts add up, the fullest memory counts."""
        uses = [use for use in (self.kv_use, other.kv_use) if use is not None]
        return Load(self.running + other.running, self.waiting + other.waiting, max(uses, default=None))


def read_load(text: bytes) -> Mapping[str, Load] | None:
    """Load by the label ``model_name`` ("" where there is none); None when the text says nothing of load."""
    loads: dict[str, Load] = {}
    for found in _SAMPLE.finditer(text):
        labels = _MODEL.search(found["labels"] or b"")
        model = labels[1].decode(errors="replace") if labels else ""
        sample = _sample(found)
        if sample is not None:
            loads[model] = loads.get(model, Load()) + sample
    return loads or None


def load_of(loads: Mapping[str, Load], model: str) -> Load:
    """The load that concerns ``model``: its own, else that of the whole engine (an adapter has none of its
    own: it runs in its base model's batch)."""
    if model in loads:
        return loads[model]
    total = Load()
    for load in loads.values():
        total += load
    return total


def _sample(found: re.Match[bytes]) -> Load | None:
    try:
        value = float(found["value"])
    except ValueError:
        return None
    if not math.isfinite(value) or value < 0:
        return None
    if found["kv"]:
        return Load(kv_use=min(value, 1.0))
    count = min(int(value), _COUNT_MAX)
    return Load(running=count) if found["running"] else Load(waiting=count)
