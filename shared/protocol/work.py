"""How much work a request for pictures or videos is (PROTOCOL §4.7). Pure.

A diffusion model computes every pixel of every picture or frame in every step. So its work is counted in
*units*: megapixels × frames × pictures × steps. A unit takes a model the same time whatever the request,
roughly; how long, and what is fixed, is learnt of each model.

An agent says of a stored workflow how many units it is as it stands, and which inputs of a request these are
proportional to (:class:`WorkScale`). What a workflow's nodes mean is known by the names of their inputs,
which ComfyUI's own nodes and most others share.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from shared.process.frozen import frozen

WORK_INPUTS = 32
"""Inputs that a scale may name."""

NAME_CHARS = 64
UNITS_MAX = 1e9
"""A thousand steps of a minute in 8K are some 5e7."""

STEPS = ("steps",)
BATCH = ("batch_size", "amount")
FRAMES = ("length", "frames", "num_frames", "video_frames", "frame_count")
"""Inputs of nodes that say how many steps, pictures and frames there are."""

_SIZE = ("width", "height")
_MEGA = 1e6


@frozen
class WorkScale:
    """``units`` is the work of a request without inputs; it is proportional to each of ``inputs``, which have
    the values here where a request has none."""

    units: float
    inputs: Mapping[str, float]

    def units_of(self, given: Mapping[str, float]) -> float:
        """The work of a request with inputs."""
        units = self.units
        for name, usual in self.inputs.items():
            value = given.get(name)
            if value is not None and value > 0.0:
                units *= value / usual
        return min(units, UNITS_MAX)


def usable_scale(value: Any) -> WorkScale | None:
    """What a STATE says, without what cannot be; None where it says none."""
    if not isinstance(value, dict) or (units := positive(value.get("units"))) is None:
        return None
    said = value.get("inputs")
    inputs: dict[str, float] = {}
    for name, usual in said.items() if isinstance(said, dict) else ():
        number = positive(usual)
        if number is not None and 0 < len(name) <= NAME_CHARS and len(inputs) < WORK_INPUTS:
            inputs[name] = number
    return WorkScale(min(units, UNITS_MAX), inputs)


def positive(value: Any) -> float | None:
    """``value``, if it is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= UNITS_MAX and math.isfinite(value) else None


def units_of_nodes(nodes: Iterable[Any]) -> float | None:
    """The work of the nodes of a workflow in ComfyUI's API format; None where they say nothing of it.

    Samplers follow each other, so their steps add up. Of several sizes the largest counts, as what is
    computed is mostly as large as what comes out.
    """
    steps, frames, batch, pixels = 0.0, 1.0, 1.0, 0.0
    for node in nodes:
        inputs = node.get("inputs") if isinstance(node, dict) else None
        if not isinstance(inputs, dict):
            continue
        steps += _most(inputs, STEPS) or 0.0
        batch = max(batch, _most(inputs, BATCH) or 1.0)
        width, height = (positive(inputs.get(name)) for name in _SIZE)
        if width is not None and height is not None:
            pixels = max(pixels, width * height)
            frames = max(frames, _most(inputs, FRAMES) or 1.0)
    if not (steps or pixels):
        return None
    return min((pixels or _MEGA) / _MEGA * frames * batch * (steps or 1.0), UNITS_MAX)


def _most(inputs: Mapping[str, Any], names: Iterable[str]) -> float | None:
    return max((number for name in names if (number := positive(inputs.get(name))) is not None), default=None)
