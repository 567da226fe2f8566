"""Which part of a list is asked for, in the query of OpenAI's lists."""

from collections.abc import Mapping

from gateway.domain.errors import BadRequest

_DIGITS = 9
"""Of numbers with thousands of digits Python reads none."""


def read_limit(query: Mapping[str, str], usual: int, most: int) -> int:
    """How many objects, 1 to ``most``. Raises BadRequest."""
    limit = query.get("limit", str(usual))
    if not limit.isdecimal() or len(limit) > _DIGITS or not 1 <= int(limit) <= most:
        raise BadRequest(f"'limit' must be an integer from 1 to {most}.", param="limit")
    return int(limit)


def read_order(query: Mapping[str, str]) -> str:
    """``asc`` or ``desc``, by when they were made. Raises BadRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise BadRequest("'order' must be asc or desc.", param="order")
    return order
