"""Devices and models by name: public figures, and what is assumed beside them.

Memory, bandwidth and arithmetic of a device class, with the source of each figure, are those of
:data:`gateway.scheduling.learning.devices.CLASSES`: makers' data sheets, 16-bit tensor arithmetic without
sparsity. Decoding is bound by bandwidth, prefill by arithmetic. Models' sizes are those of their published
configurations.
"""

import math
import random
import re
from dataclasses import dataclass, fields, replace
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from gateway.scheduling.learning.devices import CLASSES, DeviceClass
from gateway.tools.simulate.inputs import BadSpec, mistake_in

MEMORY_SHARE = 0.9
"""The share of a device's memory that an engine takes: vLLM's default ``gpu_memory_utilization``."""

BANDWIDTH_SHARE = 0.75
FLOPS_SHARE = 0.5
"""What real kernels reach of the printed rates. Assumptions, within what is reported for 8B models on these
cards."""

STEP_S = 0.002
"""Assumed for each step beside the device's work: scheduling, launching kernels, sampling."""

DISK_GB_S = 5.0
PCIE_GB_S = 13.0
ENGINE_START_S = 15.0
"""Weights come from an NVMe drive (assumed: a drive of PCIe 4) through PCIe: x16 of generation 3, the
slowest in the table, moves 16 GB/s by its specification and 13 in practice, so the drive is what counts.
Starting the engine around them, with its warm-up, is assumed to take as long everywhere."""

ACTIVATION_GB = 1.0
"""Assumed for activations and the CUDA context, out of :data:`MEMORY_SHARE`."""

ROOM_SHARE = 0.2
"""Weights are of 16 bits where that leaves so much of the memory for KV, else of 8, as an operator would."""

SLOT_TOKENS = 2048
"""A deployment's slots are its KV tokens over this, 8 at the least and the engine's batch at the most."""

BIG_MEMORY_GB = 70.0
BIG_CHUNK_TOKENS, CHUNK_TOKENS = 8192, 2048
MAX_RUNNING = 256
"""vLLM's defaults for its server: tokens per step by the size of the card's memory, requests at once."""


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A dense transformer with grouped attention; ``kv_width`` is KV heads times their dimension."""

    name: str
    parameters: float
    layers: int
    width: int
    kv_width: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of 16 bits."""
        return 2 * 2 * self.layers * self.kv_width


_Seconds = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePace:
    """How one device runs one model. A step that computes ``n`` tokens, of them a prompt's ``c`` behind ``p``
    others, beside running requests of ``context`` tokens together, takes

    ``step_s + max(weights_s, token_s n) + context_s context + pair_s c (p + c/2) + each_s d``

    where ``d`` of the requests decode.
    """

    step_s: _Seconds = STEP_S
    weights_s: _Seconds
    """Reading every weight once."""
    token_s: _Seconds
    """The linear layers' arithmetic for one token."""
    context_s: _Seconds = 0.0
    """Reading keys and values of one token of context."""
    pair_s: _Seconds = 0.0
    """Attention of one new token to one token before it."""
    each_s: _Seconds = 0.0
    """For each request that decodes in a step, beside all that."""
    kv_tokens: _Count
    chunk_tokens: _Count = CHUNK_TOKENS
    max_running: _Count = MAX_RUNNING
    load_s: _Seconds = 30.0

    @property
    def slots(self) -> int:
        """What an agent would grant for it."""
        return min(self.max_running, max(8, self.kv_tokens // SLOT_TOKENS))


MODELS = {
    model.name: model
    for model in (
        SimulatedModel("llama-3.1-8b", 8.03e9, 32, 4096, 1024),
        SimulatedModel("llama-3.2-3b", 3.21e9, 28, 3072, 1024),
        SimulatedModel("qwen2.5-7b", 7.62e9, 28, 3584, 512),
        SimulatedModel("qwen2.5-14b", 14.8e9, 48, 5120, 1024),
        SimulatedModel("qwen2.5-32b", 32.8e9, 64, 5120, 1024),
        SimulatedModel("llama-3.1-70b", 70.6e9, 80, 8192, 1024),
    )
}
DEFAULT_MODEL = "llama-3.1-8b"


def pace_of(card: DeviceClass, model: SimulatedModel) -> DevicePace:
    """Raises BadSpec where the model does not fit that card."""
    usable_gb = card.memory_gb * MEMORY_SHARE - ACTIVATION_GB
    bytes_per_weight = 2 if usable_gb - 2e-9 * model.parameters >= ROOM_SHARE * usable_gb else 1
    weights_gb = model.parameters * bytes_per_weight / 1e9
    kv_tokens = int((usable_gb - weights_gb) * 1e9 / model.kv_bytes_per_token)
    if usable_gb - weights_gb < ROOM_SHARE * usable_gb:
        raise BadSpec(
            "--fleet",
            f"{model.name} does not fit {card.name}: its weights take {weights_gb:.0f} GB even with "
            f"8 bits each, and {usable_gb:.0f} GB may be used there, {ROOM_SHARE:.0%} of it at least for KV",
        )
    bytes_per_s, flops = card.bandwidth_gb_s * 1e9 * BANDWIDTH_SHARE, card.tflops * 1e12 * FLOPS_SHARE
    return DevicePace(
        step_s=STEP_S,
        weights_s=weights_gb * 1e9 / bytes_per_s,
        token_s=2 * model.parameters / flops,
        context_s=model.kv_bytes_per_token / bytes_per_s,
        pair_s=4 * model.layers * model.width / flops,
        kv_tokens=kv_tokens,
        chunk_tokens=BIG_CHUNK_TOKENS if card.memory_gb >= BIG_MEMORY_GB else CHUNK_TOKENS,
        max_running=MAX_RUNNING,
        load_s=ENGINE_START_S + weights_gb / min(DISK_GB_S, PCIE_GB_S),
    )


def device_named(name: str) -> DeviceClass:
    """Raises BadSpec, saying which names there are."""
    if name not in CLASSES:
        raise BadSpec("--fleet", f"no device class is called {name!r}; there are: {', '.join(CLASSES)}")
    return CLASSES[name]


def model_named(name: str) -> SimulatedModel:
    """Raises BadSpec, saying which names there are."""
    if name not in MODELS:
        raise BadSpec("--model", f"no model is called {name!r}; there are: {', '.join(MODELS)}")
    return MODELS[name]


def varied(pace: DevicePace, spread: float, chance: random.Random) -> DevicePace:
    """One device or class that is not quite as its figures say: its arithmetic and its memory are each faster
    or slower by a log-normal factor."""
    arithmetic, memory = (math.exp(chance.gauss(0.0, spread)) for _ in range(2))
    return slowed(pace, arithmetic, memory)


def slowed(pace: DevicePace, arithmetic: float, memory: float) -> DevicePace:
    """A device whose arithmetic and whose memory are slower by these factors."""
    return replace(
        pace,
        token_s=pace.token_s * arithmetic,
        pair_s=pace.pair_s * arithmetic,
        weights_s=pace.weights_s * memory,
        context_s=pace.context_s * memory,
    )


# --- Devices that somebody has measured ---

_FIELDS = [field.name for field in fields(DevicePace)]
_NAME = re.compile(r"[a-z][a-z0-9]{0,63}")


def own_device(text: str) -> tuple[str, DevicePace]:
    """Reads ``mine:weights_s=0.02,token_s=0.0002,kv_tokens=40000``: its name, for ``--fleet``, and its pace.

    The members are those of :class:`DevicePace`, for the model that is served; those with a default may be
    left out. Raises BadSpec.
    """
    name, colon, rest = text.partition(":")
    if not colon or not _NAME.fullmatch(name):
        raise BadSpec(
            "--device", f"{text!r} is not NAME:member=value,… with a name of small letters and digits"
        )
    parts = (part.partition("=") for part in rest.split(","))
    values = {key.strip(): value.strip() for key, _, value in parts}
    for key in values:
        if key not in _FIELDS:
            raise BadSpec("--device", f"{name}: no member is called {key!r}; there are: {', '.join(_FIELDS)}")
    try:
        pace = TypeAdapter(DevicePace).validate_python(values)
    except ValidationError as error:
        raise BadSpec("--device", f"{name}: {mistake_in(error)}") from None
    if pace.step_s + pace.weights_s <= 0:
        raise BadSpec("--device", f"{name}: a step must take some time: step_s or weights_s must be over 0")
    if pace.chunk_tokens <= pace.max_running:
        raise BadSpec("--device", f"{name}: chunk_tokens must be more than max_running, {pace.max_running}")
    return name, pace
