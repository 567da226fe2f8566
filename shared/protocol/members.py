"""Reading the members of a JSON payload that a peer sent (PROTOCOL §4).

Each function gives the value of one member, checked, or raises
:class:`~shared.protocol.errors.FrameMalformed`.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import orjson

from shared.protocol import limits
from shared.protocol.errors import FrameMalformed
from shared.protocol.header_fields import FORBIDDEN_IN_VALUE

_E = TypeVar("_E", bound=StrEnum)

Headers = tuple[tuple[str, str], ...]
"""Lower-case names, hop-by-hop headers removed, order kept."""


def read_object(payload: bytes | memoryview) -> dict[str, Any]:
    """The JSON object in ``payload``. Raises :class:`FrameMalformed` for anything else."""
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise FrameMalformed(f"payload is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FrameMalformed("payload is not a JSON object")
    return value


def read_text(value: Mapping[str, Any], key: str, default: str | None = None, most: int = 4096) -> str:
    item = value.get(key, default)
    if not isinstance(item, str) or len(item) > most:
        raise FrameMalformed(f"member {key!r} must be a string of at most {most} characters")
    return item


def read_optional_text(value: Mapping[str, Any], key: str) -> str | None:
    return None if value.get(key) is None else read_text(value, key)


def read_integer(value: Mapping[str, Any], key: str, default: int | None = None, most: int = 2**53) -> int:
    item = value.get(key, default)
    if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= most:
        raise FrameMalformed(f"member {key!r} must be an integer from 0 to {most}")
    return item


def read_amount(value: Mapping[str, Any], key: str) -> int | None:
    """An integer above 0, or None."""
    if value.get(key) is None:
        return None
    if (item := read_integer(value, key)) == 0:
        raise FrameMalformed(f"member {key!r} must be above 0, or null")
    return item


def read_number(value: Mapping[str, Any], key: str, most: float = 1e15) -> float | None:
    item = value.get(key)
    if item is None:
        return None
    if not isinstance(item, int | float) or isinstance(item, bool):
        raise FrameMalformed(f"member {key!r} must be a number")
    if not math.isfinite(item) or not -most <= item <= most:
        raise FrameMalformed(f"member {key!r} is out of range")
    return float(item)


def read_share(value: Mapping[str, Any], key: str) -> float | None:
    """From 0 to 1, or None."""
    return _not_negative(value, key, 1.0)


def read_seconds(value: Mapping[str, Any], key: str) -> float | None:
    """A duration, not negative; or None."""
    return _not_negative(value, key, 1e9)


def _not_negative(value: Mapping[str, Any], key: str, most: float) -> float | None:
    item = read_number(value, key, most)
    if item is not None and item < 0:
        raise FrameMalformed(f"member {key!r} must not be negative")
    return item


def read_choice(value: Mapping[str, Any], key: str, kind: type[_E], default: str | None = None) -> _E:
    try:
        return kind(value.get(key, default))
    except ValueError:
        raise FrameMalformed(f"member {key!r} must be one of {', '.join(kind)}") from None


def read_flag(value: Mapping[str, Any], key: str) -> bool:
    item = value.get(key, False)
    if not isinstance(item, bool):
        raise FrameMalformed(f"member {key!r} must be true or false")
    return item


def read_headers(value: Mapping[str, Any]) -> Headers:
    items = value.get("headers", [])
    if not isinstance(items, list) or len(items) > limits.HEADERS:
        raise FrameMalformed(f"member 'headers' must be a list of at most {limits.HEADERS} pairs")
    size_bytes = 0
    headers: list[tuple[str, str]] = []
    for item in items:
        if not isinstance(item, list) or len(item) != 2:
            raise FrameMalformed("a header must be a pair of strings")
        name, text = item
        if not isinstance(name, str) or not isinstance(text, str):
            raise FrameMalformed("a header must be a pair of strings")
        if not _is_field_name(name) or FORBIDDEN_IN_VALUE.search(text):
            raise FrameMalformed("a header must have a lower-case name and no control characters")
        size_bytes += len(name) + len(text)
        headers.append((name, text))
    if size_bytes > limits.HEADER_BYTES:
        raise FrameMalformed(f"headers exceed {limits.HEADER_BYTES} bytes")
    return tuple(headers)


@lru_cache(maxsize=256)
def _is_field_name(name: str) -> bool:
    """Remembered, because few names are ever used, and the same all the time."""
    return name != "" and name == name.lower() and not FORBIDDEN_IN_VALUE.search(name)


def read_objects(value: Mapping[str, Any], key: str, most: int) -> list[dict[str, Any]]:
    items = value.get(key, [])
    if not isinstance(items, list) or len(items) > most or not all(isinstance(item, dict) for item in items):
        raise FrameMalformed(f"member {key!r} must be a list of at most {most} objects")
    return items


def read_labels(value: Mapping[str, Any]) -> Mapping[str, str]:
    """The member ``labels``: label → value, as far as there is room. What can be no label is left out."""
    labels = value.get("labels", {})
    if not isinstance(labels, dict):
        raise FrameMalformed("member 'labels' must be an object")
    pairs = ((name, text) for name, text in labels.items() if isinstance(text, str))
    fitting = (
        (name, text)
        for name, text in pairs
        if max(len(name), len(text)) <= limits.LABEL_CHARS and (name + text).isprintable()
    )
    return dict(islice(fitting, limits.LABELS))
