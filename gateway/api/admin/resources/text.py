"""How values are written on the command line and shown in tables, and the fields that several resources have.

Readers raise BadInput."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from annotated_types import Ge, MaxLen

from gateway.api.admin.resources.resource import BadInput, Field, Json
from gateway.domain.quotas import MOST_COUNT

Names = Annotated[list[str], MaxLen(64)]
Labels = Annotated[dict[str, str], MaxLen(64)]
Limit = Annotated[int, Ge(1)]

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")


def duration_s(text: str) -> float:
    """Seconds in ``90s``, ``30m``, ``24h``, ``7d`` or ``2w``."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise BadInput(f"{text!r} is no duration; write for example 30m, 24h or 7d")
    return float(match[1]) * _UNITS_S[match[2]]


def split_commas(texts: list[str]) -> list[str]:
    """The values in options that may be repeated and hold several, separated by commas."""
    return [part.strip() for text in texts for part in text.split(",")]


def read_labels(pairs: list[str]) -> dict[str, str]:
    """The labels in ``k=v`` texts. A label that is named more than once has all the values."""
    labels: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        values = labels.setdefault(name, [])
        if not equals or value in values:
            raise BadInput(f"{pair!r} {'is given twice' if equals else 'is no label; write k=v'}", "--label")
        values.append(value)
    return {name: ",".join(values) for name, values in labels.items()}


def duration_field(name: str, option: str, about: str, default: str | None = None) -> Field:
    """Seconds, written as a duration."""
    default_s = None if default is None else duration_s(default)
    written: dict[str, Any] = {"option_type": str, "read": duration_s, "metavar": "DURATION"}
    return Field(name, float, about, default=default_s, option=option, option_default=default, **written)


def names_field(name: str, about: str, option: str | None = None, **more: Any) -> Field:
    """Several names or patterns."""
    return Field(name, Names, about, option=option, read=split_commas, metavar="A,B", **more)


def labels_field(about: str, default: Mapping[str, str] | None = None) -> Field:
    """Labels of agents."""
    written: dict[str, Any] = {"option_type": list[str], "read": read_labels, "metavar": "K=V"}
    return Field("labels", Labels, about, default=default, option="--label", **written)


def limit_field(name: str, about: str, type_: Any = Limit, most: float = MOST_COUNT, **more: Any) -> Field:
    """A limit, which null takes away over HTTP, and 0 on the command line."""
    return Field(name, type_, about, read=lambda given: given or None, least=0, most=most, **more)


RATE_FIELDS = (
    limit_field("rpm", "Requests per minute; 0: no limit."),
    limit_field("tpm", "Tokens per minute, of prompts and answers; 0: no limit."),
    limit_field("concurrency", "Requests at once; 0: no limit."),
)


def format_time(wall_s: float) -> str:
    """A time of day for humans, in UTC."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_labels(labels: Mapping[str, str]) -> str:
    """``k=v`` of each, by name."""
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def format_limits(facts: Mapping[str, Any], names: Sequence[str]) -> str:
    """Those of the limits that there are, in one line."""
    limits = ((name, facts[name]) for name in names if facts[name] is not None)
    return " ".join(f"{name.replace('_', '-')}={value:.12g}" for name, value in limits)


def cell_text(facts: Json, cell: str | Callable[[Json], str]) -> str:
    """What a table shows of a fact: times that never were as such, lists and labels in one line."""
    if not isinstance(cell, str):
        return cell(facts)
    value = facts[cell]
    if cell.endswith("_s"):
        return "never" if value is None else format_time(value)
    if isinstance(value, dict):
        return format_labels(value)
    if isinstance(value, list | tuple):
        return " ".join(value)
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)
