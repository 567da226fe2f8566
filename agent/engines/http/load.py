"""How busy an engine says it is: reading ``/metrics``. Pure.

One regular expression goes over the text; the hundreds of histogram lines between are never taken apart.
A page of megabytes takes long all the same, so it is read slice by slice, with a turn of the loop after each.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add

from shared.protocol.batch_sizes import BatchSizes
from shared.protocol.limits import BATCH_SIZES

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
_KV_TOKENS = (
    b"sglang:max_total_num_tokens",  # emit_constants in its metrics_collector.py
    b"trunkline_engine_kv_tokens",
)
_KV_INFO = b"vllm:cache_config_info"
"""Always 1; its labels are vLLM's cache settings (vllm/v1/metrics/loggers.py, log_metrics_info)."""
_BATCH = b"trunkline_engine_batch_size_bucket"
_BATCH_ITEMS = b"trunkline_engine_batch_size_sum"
"""A histogram of this project's own engines, with the bounds of :mod:`shared.protocol.batch_sizes`."""
_SAMPLE = re.compile(
    rb"^(?:(?P<running>%s)|(?P<waiting>%s)|(?P<kv>%s)|(?P<tokens>%s)|(?P<info>%s)|(?P<batch>%s)|(?P<items>%s))"
    rb"(?:\{(?P<labels>[^}\n]*)\})?[ \t]+(?P<value>[^\s]+)"
    % (
        b"|".join(_RUNNING),
        b"|".join(_WAITING),
        b"|".join(_KV_USE),
        b"|".join(_KV_TOKENS),
        _KV_INFO,
        _BATCH,
        _BATCH_ITEMS,
    ),
    re.MULTILINE,
)
_INFO_LABEL = re.compile(rb'(?:^|,)\s*(kv_cache_size_tokens|num_gpu_blocks|block_size)="(\d{1,15})(?:\.0)?"')
_MODEL = re.compile(rb'(?:^|,)\s*model_name="([^"]*)"')
_BOUND = re.compile(rb'(?:^|,)\s*le="([^"]*)"')
_PLACES = {str(float(bound)).encode(): place for place, bound in enumerate(BATCH_SIZES)}
_PLACES[b"+Inf"] = len(BATCH_SIZES)
_NO_BATCHES = (0,) * (len(_PLACES) + 1)
_COUNT_MAX = 1_000_000

SLICE_BYTES = 16 * 1024
"""Read without a pause: 2 ms where every line tells of load. Lines are not cut, and longer ones not read."""

LABELS = 1024
"""Models whose load is facts apart; more have none of their own."""
_TOKENS_MAX = 2**53


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Anybody's requests in the batch and in the queue; share of KV memory in use, and its room in tokens."""

    running: int = 0
    waiting: int = 0
    kv_use: float | None = None
    kv_tokens: int | None = None
    at_most: tuple[int, ...] = ()
    """Batches so far that were no larger than each of the bounds, then the items in all of them; empty: not
    said."""

    @property
    def batches(self) -> BatchSizes | None:
        """The batches so far, each counted once; None: the engine does not say."""
        if not self.at_most:
            return None
        *at_most, items = self.at_most
        return BatchSizes(tuple(map(lambda now, below: max(0, now - below), at_most, (0, *at_most))), items)

    def __add__(self, other: "EngineLoad") -> "EngineLoad":
        """Of several replicas or models in one engine: counts add up, the fullest memory counts, and of
        room the largest: ranks that share one memory each tell of it."""
        uses = [use for use in (self.kv_use, other.kv_use) if use is not None]
        rooms = [room for room in (self.kv_tokens, other.kv_tokens) if room is not None]
        running, waiting = self.running + other.running, self.waiting + other.waiting
        at_most = self.at_most or other.at_most
        if self.at_most and other.at_most:
            at_most = tuple(map(add, self.at_most, other.at_most))
        return EngineLoad(running, waiting, max(uses, default=None), max(rooms, default=None), at_most)


class Loads:
    """What an engine says of its load, by the label ``model_name`` ("" where there is none)."""

    def __init__(self, by_model: Mapping[str, EngineLoad] | None = None) -> None:
        self.by_model = dict(by_model or {})

    def feed(self, text: bytes) -> None:
        """Reads the next of the :func:`slices` of a page. To be called before :meth:`of`."""
        loads = self.by_model
        for found in _SAMPLE.finditer(text):
            labels = _MODEL.search(found["labels"] or b"")
            model = labels[1].decode(errors="replace") if labels else ""
            sample = _sample(found)
            if sample is not None and (model in loads or len(loads) < LABELS):
                loads[model] = loads.get(model, EngineLoad()) + sample

    @cached_property
    def _total(self) -> EngineLoad:
        return sum(self.by_model.values(), EngineLoad())

    def of(self, model: str) -> EngineLoad:
        """The load that concerns ``model``: its own, else that of the whole engine (an adapter runs in the
        batch of its base model). Room that has no model's name is everybody's."""
        if model not in self.by_model:
            return self._total
        own, common = self.by_model[model], self.by_model.get("", EngineLoad())
        return replace(own, kv_tokens=own.kv_tokens or common.kv_tokens)


def slices(text: bytes) -> Iterator[bytes]:
    """``text`` in pieces of :data:`SLICE_BYTES` at most, which end where lines end."""
    start = 0
    while start < len(text):
        end = start + SLICE_BYTES
        if end < len(text):
            end = text.rfind(b"\n", start, end) + 1 or end
        yield text[start:end]
        start = end


def _kv_tokens(labels: bytes) -> int | None:
    """vLLM's own figure where it has one: with hybrid models blocks × size is not what fits."""
    facts = {name: int(value) for name, value in _INFO_LABEL.findall(labels)}
    tokens = facts.get(b"num_gpu_blocks", 0) * facts.get(b"block_size", 0)
    return min(facts.get(b"kv_cache_size_tokens", 0) or tokens, _TOKENS_MAX) or None


def _sample(found: re.Match[bytes]) -> EngineLoad | None:
    if found["info"]:
        return EngineLoad(kv_tokens=_kv_tokens(found["labels"] or b""))
    try:
        value = float(found["value"])
    except ValueError:
        return None
    if not math.isfinite(value) or value < 0:
        return None
    if found["kv"]:
        return EngineLoad(kv_use=min(value, 1.0))
    if found["batch"] or found["items"]:
        return _batch(found, min(int(value), _TOKENS_MAX))
    if found["tokens"]:
        return EngineLoad(kv_tokens=min(int(value), _TOKENS_MAX) or None)
    count = min(int(value), _COUNT_MAX)
    return EngineLoad(running=count) if found["running"] else EngineLoad(waiting=count)


def _batch(found: re.Match[bytes], count: int) -> EngineLoad | None:
    """One sample of the histogram; None for a bound that is none of ours."""
    place: int | None = len(_PLACES)
    if found["batch"]:
        bound = _BOUND.search(found["labels"] or b"")
        place = None if bound is None else _PLACES.get(bound[1])
    if place is None:
        return None
    return EngineLoad(at_most=(*_NO_BATCHES[:place], count, *_NO_BATCHES[place + 1 :]))
