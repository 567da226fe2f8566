"""Header fields of HTTP: which belong to one connection, and how fields are written (RFC 9110 §5, §7.6.1)."""

import re
from collections.abc import Iterable

HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""Fields of one connection, which are not passed on. A message names more of its own in ``Connection``
(:func:`connection_options`)."""

FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
"""A whole field's name in lower case."""

FORBIDDEN_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Control characters but the tab."""


def connection_options(values: Iterable[str]) -> frozenset[str]:
    """The names, in lower case, in these values of ``Connection`` fields."""
    names = set()
    for value in values:
        for name in value.split(","):
            names.add(name.strip().lower())
    return frozenset(names)
