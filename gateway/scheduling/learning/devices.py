"""Classes of devices: what a GPU's name says about its speed before anything was measured.

The figures are the makers' own for 16-bit tensor arithmetic without sparsity and for memory bandwidth.
Reading a prompt is bound by the former, writing an answer by the latter.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """One kind of GPU. Public figures; ``source`` says whose."""

    name: str
    tflops: float
    """10^12 floating point operations a second, dense, 16 bits in, 32 bits accumulated."""
    bandwidth_gb_s: float
    """10^9 bytes a second."""
    memory_gb: float
    source: str


CLASSES: Mapping[str, DeviceClass] = {
    each.name: each
    for each in (
        DeviceClass("b200", 2250.0, 8000.0, 180.0, "NVIDIA DGX B200 datasheet, an eighth of it"),
        DeviceClass("h200", 989.0, 4800.0, 141.0, "NVIDIA H200 datasheet, SXM"),
        DeviceClass("gh200", 989.0, 4000.0, 96.0, "NVIDIA GH200 datasheet, HBM3"),
        DeviceClass("h100", 989.0, 3350.0, 80.0, "NVIDIA H100 datasheet, SXM"),
        DeviceClass("a100", 312.0, 2039.0, 80.0, "NVIDIA A100 datasheet, 80 GB SXM"),
        DeviceClass("l40s", 362.0, 864.0, 48.0, "NVIDIA L40S datasheet"),
        DeviceClass("l40", 181.0, 864.0, 48.0, "NVIDIA L40 datasheet"),
        DeviceClass("a40", 149.7, 696.0, 48.0, "NVIDIA A40 datasheet"),
        DeviceClass("a30", 165.0, 933.0, 24.0, "NVIDIA A30 datasheet"),
        DeviceClass("a10g", 70.0, 600.0, 24.0, "NVIDIA A10G datasheet"),
        DeviceClass("a10", 125.0, 600.0, 24.0, "NVIDIA A10 datasheet"),
        DeviceClass("l4", 121.0, 300.0, 24.0, "NVIDIA L4 datasheet"),
        DeviceClass("t4", 65.0, 320.0, 16.0, "NVIDIA T4 datasheet"),
        DeviceClass("v100", 125.0, 900.0, 32.0, "NVIDIA V100 datasheet, SXM2"),
        DeviceClass("rtx5090", 209.5, 1792.0, 32.0, "NVIDIA RTX Blackwell architecture paper"),
        DeviceClass("rtx4090", 165.2, 1008.0, 24.0, "NVIDIA Ada architecture paper, appendix A"),
        DeviceClass("rtx3090", 71.0, 936.0, 24.0, "NVIDIA Ampere GA102 architecture paper"),
        DeviceClass("rtxa6000", 154.8, 768.0, 48.0, "NVIDIA RTX A6000 datasheet"),
    )
}

TYPICAL = CLASSES["l40s"]
"""What a device of an unknown name is taken for: neither the fastest nor the slowest."""

PARAMETERS = 8e9
WEIGHT_BYTES = 2 * PARAMETERS
PAIR_FLOPS = 4.0 * 32 * 4096
"""Attention of one token to one before it: 4 x 32 layers x a width of 4096."""

KV_TOKEN_BYTES = 131_072.0
"""Keys and values of one token in a model of 8 billion parameters: 32 layers x 8 heads x 128 values x 2
bytes, twice."""

COMPUTE_SHARE = 0.5
BANDWIDTH_SHARE = 0.7
"""What engines reach of a device's figures, roughly: reading prompts, and reading weights."""

SEQUENCE_S = 20e-6
"""Per running request and step, for what is not computed on the device."""

LOAD_BYTES_S = 1e9
LOAD_FIXED_S = 15.0
"""A load reads the weights from a disk, then the engine warms up."""

NAME_CHARS = 64
"""Only so many characters of an unknown device's name count."""

_NAMES = "|".join(sorted(CLASSES, key=len, reverse=True))
_IN_A_NAME = re.compile(rf"(?<![a-z0-9])({_NAMES})(?![0-9a-z])")


@lru_cache(maxsize=1024)
def device_class(name: str) -> str:
    """The class of a device by the name NVML gives it (``NVIDIA H100 80GB HBM3`` → ``h100``); of several,
    joined by commas, the slowest in reading. Unknown names are classes of their own."""
    known = [found for part in name.lower().split(",") for found in _classes_in(part)]
    if known:
        return min(known, key=lambda each: (CLASSES[each].tflops, each))
    return name.strip().lower()[:NAME_CHARS]


def figures_of(device: str) -> DeviceClass:
    """The figures of a class; those of :data:`TYPICAL` for one that is not known."""
    return CLASSES.get(device, TYPICAL)


def _classes_in(name: str) -> list[str]:
    return _IN_A_NAME.findall(re.sub(r"\brtx\s+", "rtx", name))


@dataclass(frozen=True, slots=True)
class Prior:
    """The coefficients of :mod:`gateway.scheduling.learning.performance` before anything was learnt, in
    seconds: those of a dense model of 8 billion parameters in 16 bits on the device's public figures."""

    token_s: float
    pair_s: float
    step_s: float
    each_s: float
    kv_s: float
    load_s: float

    @classmethod
    def of(cls, device: str) -> "Prior":
        figures = figures_of(device)
        token_s = 2 * PARAMETERS / (figures.tflops * 1e12 * COMPUTE_SHARE)
        byte_s = 1.0 / (figures.bandwidth_gb_s * 1e9 * BANDWIDTH_SHARE)
        return cls(
            token_s=token_s,
            pair_s=PAIR_FLOPS / (figures.tflops * 1e12 * COMPUTE_SHARE),
            step_s=WEIGHT_BYTES * byte_s,
            each_s=token_s + SEQUENCE_S,
            kv_s=KV_TOKEN_BYTES * byte_s,
            load_s=LOAD_FIXED_S + WEIGHT_BYTES / LOAD_BYTES_S,
        )
