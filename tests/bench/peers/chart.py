"""A bar chart as SVG, drawn by hand: panels of horizontal bars, each bar stacked from its roles."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _NAME, _ROW, _BAR, _HEAD, _GAP = 760, 130, 24, 16, 34, 18
_NUMBER = 180
"""Room for the number after a bar. All sizes are pixels."""
_OURS = ("#1d4ed8", "#7aa2f7")
_OTHERS = ("#6b7280", "#9ca3af", "#d1d5db")
_OUTLIER = 4.0
"""A bar more than so many times as long as the median is cut; its number still says how much it is."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One peer: its roles' values, which add up."""

    name: str
    values: Sequence[tuple[str, float]]
    ours: bool = False

    @property
    def total(self) -> float:
        return sum(value for _, value in self.values)


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    bars: Sequence[Bar]


def draw(panels: Sequence[Panel]) -> str:
    """The chart. Panels without bars are left out."""
    parts, top = [], _GAP
    for panel in panels:
        if panel.bars:
            parts += _panel(panel, top)
            top += _HEAD + _ROW * len(panel.bars) + _GAP
    size = f'viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}'
    style = 'font-family="system-ui, sans-serif" font-size="13"'
    return "\n".join(
        [f"{head} {style}>", f'<rect width="{_WIDTH}" height="{top}" fill="#ffffff"/>', *parts, "</svg>", ""]
    )


def _panel(panel: Panel, top: int) -> list[str]:
    totals = sorted(bar.total for bar in panel.bars)
    cut = totals[len(totals) // 2] * _OUTLIER
    longest = max(min(total, cut) for total in totals) or 1.0
    scale = (_WIDTH - _NAME - _NUMBER) / longest
    parts = [_text(_GAP, top + 14, panel.title, "#111827", bold=True)]
    for row, bar in enumerate(panel.bars):
        y = top + _HEAD + row * _ROW
        parts.append(_text(_NAME - 8, y + 13, bar.name, "#111827", end=True, bold=bar.ours))
        x, left = float(_NAME), longest
        for at, (role, value) in enumerate(bar.values):
            width = min(value, left) * scale
            left -= min(value, left)
            colours = _OURS if bar.ours else _OTHERS
            colour, label = colours[at % len(colours)], escape(f"{bar.name}: {role} {value:.1f}")
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}">'
                f"<title>{label}</title></rect>"
            )
            x += width
        roles = " + ".join(f"{value:.1f}" for _, value in bar.values) if len(bar.values) == len(_OURS) else ""
        cut_off = "» " if bar.total > cut else ""
        number = f"{cut_off}{bar.total:,.1f}" + (f" ({roles})" if roles and bar.ours else "")
        parts.append(_text(x + 6, y + 13, number, "#374151"))
    return parts


def _text(x: float, y: float, text: str, colour: str, *, end: bool = False, bold: bool = False) -> str:
    more = (' text-anchor="end"' if end else "") + (' font-weight="600"' if bold else "")
    return f'<text x="{x:.1f}" y="{y}" fill="{colour}"{more}>{escape(text)}</text>'
