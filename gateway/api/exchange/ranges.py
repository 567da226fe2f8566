"""Which part of a body a client asks for (RFC 9110, section 14). Pure."""

import re
from collections.abc import Mapping

from gateway.domain.errors import RangeNotSatisfiable

_RANGE = re.compile(rb"bytes[ \t]*=[ \t]*([0-9]{0,18})[ \t]*-[ \t]*([0-9]{0,18})[ \t]*\Z", re.IGNORECASE)


def range_of(fields: Mapping[bytes, bytes], size_bytes: int, etag: bytes) -> tuple[int, int] | None:
    """The first byte asked for and the one behind the last; None: all of the body.

    Of several ranges, of what cannot be read as one, and of a part of something that has another ``etag`` by
    now (``if-range``) nothing is made: the whole is the answer then. Raises RangeNotSatisfiable.
    """
    given = fields.get(b"range")
    found = None if given is None else _RANGE.match(given.strip())
    if found is None or fields.get(b"if-range", etag).strip() != etag:
        return None
    first, last = found[1], found[2]
    if not first and not last:
        return None
    if not first:  # the last so many
        count = min(int(last), size_bytes)
        if not count:
            raise RangeNotSatisfiable(size_bytes)
        return size_bytes - count, size_bytes
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size_bytes:
        raise RangeNotSatisfiable(size_bytes)
    return start, min(int(last) + 1, size_bytes) if last else size_bytes
