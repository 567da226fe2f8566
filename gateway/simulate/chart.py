"""The figures of several policies as a bar chart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.simulate.drawing import Box, Drawing, Text, png_of, svg_of
from gateway.simulate.errors import BadSpec
from gateway.simulate.tally import SHARES

_WIDTH, _NAMES, _NUMBERS, _ROW, _BAR, _HEAD, _EDGE = 860, 170, 190, 22, 14, 30, 16
"""Pixels: the whole, room for names and for numbers, a row, its bar, a panel's title, the margin."""
_SHADES = ("#1d4ed8", "#6b93f0", "#bcd0fa")

_DURATIONS = {
    "time to first token, s (p50, p95, p99)": "ttft_s",
    "latency, s (p50, p95, p99)": "latency_s",
}
_NUMBERS_OF = {
    "good requests per s": "goodput_rps",
    "spread of utilisation (cv)": "utilisation_cv",
    "prefix hit rate": "prefix_hit_rate",
    "refused": "rejected",
}


def check_plot(path: Path) -> None:
    """Raises BadSpec for a file of another kind than can be drawn."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise BadSpec("--plot", f"{path.name} must end in .png or .svg")


def write_plot(path: Path, policies: Mapping[str, Mapping[str, Any]]) -> None:
    """``policies`` is what ``--json`` prints under that name. Raises OSError."""
    drawing = draw(policies)
    if path.suffix.lower() == ".svg":
        path.write_text(svg_of(drawing), encoding="utf-8")
    else:
        path.write_bytes(png_of(drawing))


def draw(policies: Mapping[str, Mapping[str, Any]]) -> Drawing:
    parts: list[Box | Text] = []
    top = _EDGE
    for title, key in _DURATIONS.items():
        rows = {name: [each[key][share] or 0.0 for share in SHARES] for name, each in policies.items()}
        top = _panel(parts, title, rows, top)
    for title, key in _NUMBERS_OF.items():
        numbers = {name: [float(each[key])] for name, each in policies.items()}
        if any(value for (value,) in numbers.values()):
            top = _panel(parts, title, numbers, top)
    return Drawing(_WIDTH, top, parts)


def _panel(parts: list[Box | Text], title: str, rows: Mapping[str, Sequence[float]], top: int) -> int:
    """One bar for each name; of several rising values each has its shade. Returns where the next begins."""
    longest = max((max(values) for values in rows.values()), default=0.0) or 1.0
    scale = (_WIDTH - _NAMES - _NUMBERS - _EDGE) / longest
    parts.append(Text(_EDGE, top + 12, title, bold=True))
    y = float(top + _HEAD - 8)
    for name, values in rows.items():
        parts.append(Text(_NAMES - 8, y + 11, name, end=True))
        left = 0.0
        for value, colour in zip(values, _SHADES, strict=False):
            if value > left:
                parts.append(
                    Box(_NAMES + left * scale, y, (value - left) * scale, _BAR, colour, f"{name} {value:.3g}")
                )
                left = value
        numbers = " / ".join(f"{value:.3g}" for value in values)
        parts.append(Text(_NAMES + left * scale + 6, y + 11, numbers, "#374151"))
        y += _ROW
    return int(y) + _EDGE
