"""Figures for people."""

from collections.abc import Mapping
from typing import Any

_TIMES = ("TTFT P50", "P95", "P99", "LATENCY P50", "P95", "P99")
COLUMNS = ("POLICY", "DONE", "REFUSED", *_TIMES, "BUSY", "CV", "GOOD/S", "HITS")


def rows_of(policies: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Of what ``--json`` prints under ``policies``: a row for each."""
    return [
        [
            name,
            str(each["completed"]),
            str(each["rejected"]),
            *map(_seconds, each["ttft_s"].values()),
            *map(_seconds, each["latency_s"].values()),
            f"{each['utilisation']:.0%}",
            f"{each['utilisation_cv']:.2f}",
            f"{each['goodput_rps']:.2f}",
            f"{each['prefix_hit_rate']:.0%}",
        ]
        for name, each in policies.items()
    ]


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"
