"""Parts of a body, as RFC 9110 has them."""

import pytest

from gateway.api.exchange.ranges import range_of
from gateway.domain.errors import RangeNotSatisfiable

ETAG = b'"v"'


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (b"bytes=0-9", (0, 10)),
        (b"bytes=5-5", (5, 6)),
        (b"bytes=90-", (90, 100)),
        (b"bytes=90-1000", (90, 100)),
        (b"bytes=-10", (90, 100)),
        (b"bytes=-1000", (0, 100)),
        (b" Bytes = 1-2 ", (1, 3)),
        (b"bytes=9-5", None),
        (b"bytes=-", None),
        (b"bytes=0-1,5-6", None),
        (b"lines=0-1", None),
        (b"bytes=x-1", None),
        (b"", None),
    ],
)
def test_the_part_asked_for_is_found_or_the_whole_is_meant(
    given: bytes, part: tuple[int, int] | None
) -> None:
    assert range_of({b"range": given}, 100, ETAG) == part
    assert range_of({}, 100, ETAG) is None


@pytest.mark.parametrize(
    ("given", "size_bytes"), [(b"bytes=100-", 100), (b"bytes=-0", 100), (b"bytes=0-", 0)]
)
def test_a_part_behind_the_end_cannot_be_given(given: bytes, size_bytes: int) -> None:
    with pytest.raises(RangeNotSatisfiable) as caught:
        range_of({b"range": given}, size_bytes, ETAG)
    assert caught.value.size_bytes == size_bytes


def test_a_part_of_something_else_is_not_given() -> None:
    fields = {b"range": b"bytes=0-9"}
    assert range_of(fields | {b"if-range": ETAG}, 100, ETAG) == (0, 10)
    assert range_of(fields | {b"if-range": b'"w"'}, 100, ETAG) is None
