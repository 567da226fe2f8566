"""Devices that somebody has measured: ``--device 'mine:weights_s=0.02,token_s=0.0002,kv_tokens=40000'``.

The members are those of :class:`~gateway.simulate.devices.Pace`, for the model that is served: how long a
step takes without work (``step_s``), to read the weights, for a token's arithmetic, for a token of context,
for a pair of tokens in attention; KV memory, tokens per step and requests at once; seconds to load. Those
with a default may be left out.
"""

import dataclasses
import math
import re

from gateway.simulate.devices import CHUNK_TOKENS, MAX_RUNNING, STEP_S, Pace
from gateway.simulate.errors import BadSpec

MOST_S = 1000.0
MOST_TOKENS = 1_000_000_000
_DEFAULTS = {
    "step_s": STEP_S,
    "context_s": 0.0,
    "pair_s": 0.0,
    "chunk_tokens": CHUNK_TOKENS,
    "max_running": MAX_RUNNING,
    "load_s": 30.0,
}
_FIELDS = [field.name for field in dataclasses.fields(Pace)]
_NAME = re.compile(r"[a-z][a-z0-9]{0,63}")


def own_device(text: str) -> tuple[str, Pace]:
    """Its name, for ``--fleet``, and its pace. Raises BadSpec."""
    name, colon, rest = text.partition(":")
    if not colon or not _NAME.fullmatch(name):
        raise BadSpec(
            "--device", f"{text!r} is not NAME:member=value,… with a name of small letters and digits"
        )
    values: dict[str, float] = dict(_DEFAULTS)
    for part in rest.split(","):
        key, _, value = (each.strip() for each in part.partition("="))
        if key not in _FIELDS:
            raise BadSpec("--device", f"{name}: no member is called {key!r}; there are: {', '.join(_FIELDS)}")
        values[key] = _value(name, key, value)
    if missing := [key for key in _FIELDS if key not in values]:
        raise BadSpec("--device", f"{name}: {', '.join(missing)} must be said")
    if values["step_s"] + values["weights_s"] <= 0:
        raise BadSpec("--device", f"{name}: a step must take some time: step_s or weights_s must be over 0")
    if values["chunk_tokens"] <= values["max_running"]:
        raise BadSpec(
            "--device", f"{name}: chunk_tokens must be more than max_running, {values['max_running']}"
        )
    return name, Pace(**{key: values[key] for key in _FIELDS})  # type: ignore[arg-type]


def _value(name: str, key: str, text: str) -> float:
    if key.endswith("_s"):
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if 0 <= seconds <= MOST_S:
            return seconds
        raise BadSpec("--device", f"{name}: {key} must be seconds from 0 to {MOST_S:g}, not {text!r}")
    if text.isascii() and text.isdigit() and 0 < int(text[:12]) <= MOST_TOKENS:
        return int(text[:12])
    raise BadSpec("--device", f"{name}: {key} must be a whole number from 1 to {MOST_TOKENS:,}, not {text!r}")
