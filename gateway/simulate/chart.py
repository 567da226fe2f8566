"""The figures of several policies as bar charts with a heading, a legend and axes with units."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.simulate.drawing import Box, Drawing, Text, png_of, svg_of
from gateway.simulate.errors import BadSpec
from gateway.simulate.tally import SHARES

_WIDTH, _NAMES, _NUMBERS, _ROW, _BAR, _HEAD, _EDGE = 860, 170, 190, 22, 14, 30, 16
"""Pixels: the whole, room for names and for numbers, a row, its bar, a panel's title, the margin."""
_AXIS, _LINE = 34, 18
"""Pixels: room for an axis below its panel, and a line of the heading."""
_TICKS = 5
"""About so many marks on an axis."""
_SHADES = ("#1d4ed8", "#6b93f0", "#bcd0fa")
_GRID, _QUIET = "#e5e7eb", "#374151"


@dataclass(frozen=True, slots=True)
class Heading:
    """What a chart is of."""

    title: str
    lines: Sequence[str] = ()
    """Below the title: the fleet, the traffic."""


@dataclass(frozen=True, slots=True)
class _Figure:
    title: str
    unit: str
    """At the axis."""


_DURATIONS = {
    "ttft_s": _Figure("Time to first token", "seconds"),
    "latency_s": _Figure("Latency of whole answers", "seconds"),
}
_NUMBERS_OF = {
    "goodput_rps": _Figure("Good requests", "requests per second"),
    "utilisation_cv": _Figure("Spread of utilisation", "standard deviation / mean"),
    "prefix_hit_rate": _Figure("Prompt tokens found in prefix caches", "share, 0 to 1"),
    "rejected": _Figure("Refused", "requests"),
}


def check_plot(path: Path) -> None:
    """Raises BadSpec for a file of another kind than can be drawn."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise BadSpec("--plot", f"{path.name} must end in .png or .svg")


def write_plot(path: Path, policies: Mapping[str, Mapping[str, Any]], heading: Heading) -> None:
    """``policies`` is what ``--json`` prints under that name. Raises OSError."""
    drawing = draw(policies, heading)
    if path.suffix.lower() == ".svg":
        path.write_text(svg_of(drawing), encoding="utf-8")
    else:
        path.write_bytes(png_of(drawing))


def draw(policies: Mapping[str, Mapping[str, Any]], heading: Heading) -> Drawing:
    parts: list[Box | Text] = []
    top = _head(parts, heading)
    for key, figure in _DURATIONS.items():
        rows = {name: [each[key][share] or 0.0 for share in SHARES] for name, each in policies.items()}
        top = _panel(parts, figure, rows, top)
    for key, figure in _NUMBERS_OF.items():
        numbers = {name: [float(each[key])] for name, each in policies.items()}
        if any(value for (value,) in numbers.values()):
            top = _panel(parts, figure, numbers, top)
    return Drawing(_WIDTH, top, parts)


def _head(parts: list[Box | Text], heading: Heading) -> int:
    """The title, what the chart is of, and the legend. Returns where the first panel begins."""
    y = _EDGE + 12
    parts.append(Text(_EDGE, y, heading.title, bold=True))
    for line in heading.lines:
        y += _LINE
        parts.append(Text(_EDGE, y, line, _QUIET))
    y += _LINE + 4
    x = float(_EDGE)
    parts.append(Text(x, y, "Times:", _QUIET))
    for share, shade in zip(SHARES, _SHADES, strict=True):
        x += 60
        parts += [Box(x, y - 10, 12, 12, shade, share), Text(x + 17, y, share, _QUIET)]
    return y + _EDGE


def _panel(parts: list[Box | Text], figure: _Figure, rows: Mapping[str, Sequence[float]], top: int) -> int:
    """One bar for each name; of several rising values each has its shade. Returns where the next begins."""
    longest = max((max(values) for values in rows.values()), default=0.0) or 1.0
    scale = (_WIDTH - _NAMES - _NUMBERS - _EDGE) / longest
    parts.append(Text(_EDGE, top + 12, figure.title, bold=True))
    first = top + _HEAD - 8
    bottom = first + _ROW * len(rows)
    _axis(parts, figure.unit, longest, scale, first, bottom)
    for row, (name, values) in enumerate(rows.items()):
        _bar(parts, name, values, scale, first + row * _ROW)
    return bottom + _AXIS + _EDGE


def _bar(parts: list[Box | Text], name: str, values: Sequence[float], scale: float, y: float) -> None:
    parts.append(Text(_NAMES - 8, y + 11, name, end=True))
    left = 0.0
    for value, colour in zip(values, _SHADES, strict=False):
        if value > left:
            box = Box(_NAMES + left * scale, y, (value - left) * scale, _BAR, colour, f"{name} {value:.3g}")
            parts.append(box)
            left = value
    numbers = " / ".join(f"{value:.3g}" for value in values)
    parts.append(Text(_NAMES + left * scale + 6, y + 11, numbers, _QUIET))


def _axis(
    parts: list[Box | Text], unit: str, longest: float, scale: float, first: float, bottom: float
) -> None:
    for tick in ticks(longest):
        x = _NAMES + tick * scale
        parts.append(Box(x, first - 4, 1, bottom - first + 4, _GRID))
        parts.append(Text(x, bottom + 12, f"{tick:g}", _QUIET))
    parts.append(Text(_NAMES, bottom + 28, unit, _QUIET))


def ticks(longest: float) -> list[float]:
    """Marks from 0 to ``longest`` at steps of 1, 2 or 5 times a power of ten, some :data:`_TICKS` of them."""
    rough = longest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(step * number, 12) for number in range(int(longest / step) + 1)]
