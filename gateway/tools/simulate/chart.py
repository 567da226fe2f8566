"""The figures of several policies as bar charts in SVG, with a heading, a legend and axes with units.

SVG needs no library. A PNG of the same drawing needs Pillow, the extra ``plots``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gateway.tools.simulate.inputs import BadSpec
from gateway.tools.simulate.tally import SHARES
from shared.process.excerpt import printable

_WIDTH, _NAMES, _NUMBERS, _ROW, _BAR, _HEAD, _EDGE = 860, 170, 190, 22, 14, 30, 16
"""Pixels: the whole, room for names and for numbers, a row, its bar, a panel's title, the margin."""
_AXIS, _LINE = 34, 18
"""Pixels: room for an axis below its panel, and a line of the heading."""
_TICKS = 5
"""About so many marks on an axis."""
_FONT, _SCALE = 13, 2
"""Pixels of a letter; pixels of a PNG for one of the drawing."""
_SHADES = ("#1d4ed8", "#6b93f0", "#bcd0fa")
_TEXT, _GRID, _QUIET = "#111827", "#e5e7eb", "#374151"

# Key of the figure: title, unit at the axis. Of a duration there are several values, of a number one.
_DURATIONS = {
    "ttft_s": ("Time to first token", "seconds"),
    "latency_s": ("Latency of whole answers", "seconds"),
}
_NUMBERS_OF = {
    "goodput_rps": ("Good requests", "requests per second"),
    "utilisation_cv": ("Spread of utilisation", "standard deviation / mean"),
    "prefix_hit_rate": ("Prompt tokens found in prefix caches", "share, 0 to 1"),
    "rejected": ("Refused", "requests"),
}


@dataclass(frozen=True, slots=True)
class Heading:
    """What a chart is of."""

    title: str
    lines: Sequence[str] = ()
    """Below the title: the fleet, the traffic."""


def check_plot(path: Path) -> None:
    """Raises BadSpec for a file of another kind than can be drawn, ImportError for a PNG without Pillow."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise BadSpec("--plot", f"{path.name} must end in .png or .svg")
    if path.suffix.lower() == ".png":
        _pillow()


def write_plot(path: Path, policies: Mapping[str, Mapping[str, Any]], heading: Heading) -> None:
    """``policies`` is what ``--json`` prints under that name. Raises OSError, ImportError as above."""
    drawing = svg_of(policies, heading)
    if path.suffix.lower() == ".svg":
        path.write_text(drawing, encoding="utf-8")
    else:
        _write_png(path, drawing)


def _pillow() -> Sequence[Any]:
    try:
        return [import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont")]
    except ImportError:
        raise ImportError(
            "a .png needs Pillow: pip install 'trunkline[plots]'; a .svg needs nothing"
        ) from None


def _write_png(path: Path, drawing: str) -> None:
    """Pillow brings a font of its own, so letters need none of the machine's. It does not read SVG."""
    images, draws, fonts = _pillow()
    root = ElementTree.fromstring(drawing)  # noqa: S314  # it is our own
    image = images.new("RGB", [int(root.attrib[side]) * _SCALE for side in ("width", "height")])
    draw, font = draws.Draw(image), fonts.load_default(_FONT * _SCALE)
    for part in root:
        x, y, *size = (float(part.get(key, 0)) * _SCALE for key in ("x", "y", "width", "height"))
        if part.text is None:
            left, upper = round(x), round(y)
            right, lower = round(x + size[0]) - 1, round(y + size[1]) - 1
            draw.rectangle((left, upper, max(left, right), max(upper, lower)), part.attrib["fill"])
        else:
            anchor, bold = "rs" if "text-anchor" in part.attrib else "ls", "font-weight" in part.attrib
            draw.text((x, y), part.text, part.attrib["fill"], font, anchor, stroke_width=bold / 2)
    image.save(path)


def svg_of(policies: Mapping[str, Mapping[str, Any]], heading: Heading) -> str:
    """The drawing as an SVG document; the figures are those of :func:`write_plot`."""
    parts: list[str] = []
    top = _head(parts, heading)
    for key, (title, unit) in _DURATIONS.items():
        rows = {name: [each[key][share] or 0.0 for share in SHARES] for name, each in policies.items()}
        top = _panel(parts, title, unit, rows, top)
    for key, (title, unit) in _NUMBERS_OF.items():
        numbers = {name: [float(each[key])] for name, each in policies.items()}
        if any(value for (value,) in numbers.values()):
            top = _panel(parts, title, unit, numbers, top)
    size = f'viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}"'
    font = f'font-family="system-ui, sans-serif" font-size="{_FONT}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
    return "\n".join([start, _box(0, 0, _WIDTH, top, "#ffffff"), *parts, "</svg>", ""])


def _head(parts: list[str], heading: Heading) -> int:
    """The title, what the chart is of, and the legend. Returns where the first panel begins."""
    y = _EDGE + 12
    parts.append(_text(_EDGE, y, heading.title, _TEXT, "bold"))
    for line in heading.lines:
        y += _LINE
        parts.append(_text(_EDGE, y, line))
    y += _LINE + 4
    parts.append(_text(_EDGE, y, "Times:"))
    for x, share, shade in zip((76, 136, 196), SHARES, _SHADES, strict=True):
        parts += [_box(x, y - 10, 12, 12, shade, share), _text(x + 17, y, share)]
    return y + _EDGE


def _panel(parts: list[str], title: str, unit: str, rows: Mapping[str, Sequence[float]], top: int) -> int:
    """One bar for each name; of several rising values each has its shade. Returns where the next begins."""
    longest = max((max(values) for values in rows.values()), default=0.0) or 1.0
    scale = (_WIDTH - _NAMES - _NUMBERS - _EDGE) / longest
    first = top + _HEAD - 8
    bottom = first + _ROW * len(rows)
    parts.append(_text(_EDGE, top + 12, title, _TEXT, "bold"))
    for tick in ticks(longest):
        x = _NAMES + tick * scale
        parts += [_box(x, first - 4, 1, bottom - first + 4, _GRID), _text(x, bottom + 12, f"{tick:g}")]
    parts.append(_text(_NAMES, bottom + 28, unit))
    for y, (name, values) in zip(range(first, bottom, _ROW), rows.items(), strict=True):
        parts.append(_text(_NAMES - 8, y + 11, name, _TEXT, "end"))
        left = 0.0
        for value, shade in zip(values, _SHADES, strict=False):
            if value > left:
                x, width = _NAMES + left * scale, (value - left) * scale
                parts.append(_box(x, y, width, _BAR, shade, f"{name} {value:.3g}"))
                left = value
        numbers = " / ".join(f"{value:.3g}" for value in values)
        parts.append(_text(_NAMES + left * scale + 6, y + 11, numbers))
    return bottom + _AXIS + _EDGE


def _box(x: float, y: float, width: float, height: float, colour: str, label: str = "") -> str:
    """``label`` is shown when the box is pointed at."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{colour}"><title>{_escaped(label)}</title></rect>'


def _text(x: float, y: float, text: str, colour: str = _QUIET, form: str = "") -> str:
    """A line with its baseline at ``y``. It begins at ``x``, or ends there if ``form`` is ``end``."""
    more = {"": "", "end": ' text-anchor="end"', "bold": ' font-weight="600"'}[form]
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}"{more}>{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """``text`` as XML; what no XML may hold, as in the name of a file, is ``?``."""
    return escape(printable(text))


def ticks(longest: float) -> list[float]:
    """Marks from 0 to ``longest`` at steps of 1, 2 or 5 times a power of ten, some :data:`_TICKS` of them."""
    rough = longest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(step * number, 12) for number in range(int(longest / step) + 1)]
