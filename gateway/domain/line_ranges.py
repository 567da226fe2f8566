"""Lines of a file by their numbers, as clients ask for them: ``1-100,205-``. Pure."""

import re
from collections.abc import Collection

MOST_RANGES = 100
"""In one request."""

LineRanges = tuple[tuple[int, int | None], ...]
"""From the one to the other, both counted from 1 and included; to the end where there is none."""

ALL_LINES: LineRanges = ((1, None),)

_RANGE = re.compile(r"([1-9][0-9]{0,8})(-([1-9][0-9]{0,8})?)?", re.ASCII)


def read_ranges(text: str) -> LineRanges:
    """Raises ValueError, which says what is wrong."""
    parts = text.split(",", MOST_RANGES)
    if len(parts) > MOST_RANGES:
        raise ValueError(f"has more than {MOST_RANGES} ranges")
    return tuple(map(_range, parts))


def _range(text: str) -> tuple[int, int | None]:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError("must be numbers and ranges of lines, as 1-100,205-")
    first, until, last = found.groups()
    stop = int(first) if until is None else int(last) if last else None
    if stop is not None and stop < int(first):
        raise ValueError("has a range that ends before it begins")
    return int(first), stop


def write_ranges(ranges: LineRanges) -> str:
    """What :func:`read_ranges` reads."""
    return ",".join(
        f"{first}-" if last is None else str(first) if first == last else f"{first}-{last}"
        for first, last in ranges
    )


def missing_lines(have: Collection[int], most: int = MOST_RANGES) -> LineRanges:
    """The lines that are not among those, as so many ranges at most: where there would be more, the last one
    has others in it, too."""
    found: list[tuple[int, int | None]] = []
    begin = 1
    for number in sorted(have):
        if len(found) == most - 1:
            break
        if number > begin:
            found.append((begin, number - 1))
        begin = number + 1
    return (*found, (begin, None))
