"""PROGRESS as it is written and read (PROTOCOL §4.12)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol import limits
from shared.protocol.errors import FrameMalformed
from shared.protocol.progress import Preview, Progress, progress
from tests.support.frame_vectors import PROGRESS

PREVIEWS = st.builds(
    Preview, st.sampled_from(["image/png", "image/jpeg", "text/plain"]), st.binary(max_size=300)
)


@given(
    st.none() | st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=500),
    st.none() | PREVIEWS,
)
def test_whatever_an_engine_says_is_read_as_it_was_sent(
    fraction: float | None, text: str, preview: Preview | None
) -> None:
    said = progress(fraction, text, preview)
    payload = said.to_payload()
    assert 2 <= len(payload) <= limits.PROGRESS_PAYLOAD_BYTES
    assert Progress.from_payload(payload) == said


def test_the_vector_reads_as_it_is_meant() -> None:
    preview = Preview("image/png", b"\x89PNG\r\n\x1a\n")
    assert Progress.from_payload(PROGRESS) == Progress(0.4, "step 12 of 30", preview)
    assert Progress.from_payload(b'{"later":1}') == Progress()


def test_the_longest_of_everything_fits_into_a_frame() -> None:
    longest = progress(1 / 3, "\U0001f600" * 999, Preview("a/" + "b" * 61, bytes(limits.PREVIEW_BYTES)))
    assert len(longest.to_payload()) <= limits.PROGRESS_PAYLOAD_BYTES
    assert longest.preview is not None


def test_what_is_beyond_the_limits_is_brought_within_them() -> None:
    said = progress(1.5, "two\nlines" + "x" * 999, Preview("image/png", bytes(limits.PREVIEW_BYTES + 1)))
    assert (said.fraction, said.preview) == (1.0, None)
    assert said.text == ("two lines" + "x" * 999)[: limits.PROGRESS_TEXT_CHARS]
    assert progress(float("nan")).fraction is None


@pytest.mark.parametrize(
    "payload",
    [
        b'{"fraction":1.01}',
        b'{"fraction":"half"}',
        b'{"text":7}',
        b'{"preview":{"type":"image/png","data":"?"}}',
        b'{"preview":{"type":"no type","data":""}}',
        b'{"preview":{"type":"image/png"}}',
        b'{"preview":{"type":"image/png","data":"' + b"A" * 4 * (limits.PREVIEW_BYTES // 3 + 1) + b'"}}',
        b"[]",
    ],
)
def test_what_cannot_be_is_malformed(payload: bytes) -> None:
    with pytest.raises(FrameMalformed):
        Progress.from_payload(payload)
