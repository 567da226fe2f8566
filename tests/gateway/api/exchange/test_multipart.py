from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.exchange.multipart import FIELD_BYTES, PARTS, FormScan
from gateway.domain.errors import BadRequest

TYPE = b"multipart/form-data; boundary=XX"


def field(name: str, value: bytes) -> bytes:
    return b'--XX\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)


def file(value: bytes, name: str = "file") -> bytes:
    head = (
        f'--XX\r\nContent-Disposition: form-data; name="{name}"; filename="a.wav"\r\nContent-Type: audio/wav'
    )
    return head.encode() + b"\r\n\r\n" + value + b"\r\n"


END = b"--XX--\r\n"
PYTHON_SDK = field("model", b"whisper") + field("stream", b"true") + file(b"RIFF" * 100) + END
NODE_SDK = file(b"RIFF" * 100) + field("model", b"whisper") + END


def test_fields_before_the_file_are_enough() -> None:
    scan = FormScan(TYPE)
    assert scan.feed(PYTHON_SDK[: PYTHON_SDK.index(b"RIFF")])
    assert scan.members == {"model": "whisper", "stream": "true"}


def test_a_model_after_the_file_is_found_too() -> None:
    scan = FormScan(TYPE)
    assert not scan.feed(NODE_SDK)
    scan.finish()
    assert scan.members == {"model": "whisper"}


@given(st.lists(st.integers(0, len(PYTHON_SDK)), max_size=8))
def test_any_cutting_of_the_bytes_gives_the_same(cuts: list[int]) -> None:
    scan = FormScan(TYPE)
    places = [0, *sorted(cuts), len(PYTHON_SDK)]
    for start, end in pairwise(places):
        scan.feed(PYTHON_SDK[start:end])
    assert scan.done
    assert scan.members == {"model": "whisper", "stream": "true"}


def test_a_file_that_is_called_model_is_no_model() -> None:
    scan = FormScan(TYPE)
    scan.feed(file(b"evil", "model") + END)
    assert scan.members == {}


def test_headers_may_come_in_any_order_and_case() -> None:
    body = (
        b"--XX\r\nContent-Type: text/plain\r\ncontent-DISPOSITION: form-data; name=model\r\n\r\nm\r\n" + END
    )
    scan = FormScan(TYPE)
    scan.feed(body)
    assert scan.members == {"model": "m"}


@pytest.mark.parametrize("kind", [b"multipart/form-data", b"multipart/form-data; boundary=", b""])
def test_a_type_without_a_boundary_is_refused(kind: bytes) -> None:
    with pytest.raises(BadRequest):
        FormScan(kind)


def test_a_boundary_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadRequest):
        FormScan(b"multipart/form-data; boundary=" + b"x" * 300)


@pytest.mark.parametrize(
    "body",
    [
        b"no boundary at all",
        b"--XX no header",
        b"--XX\r\nbad header\r\n\r\nx\r\n--XX--",
        b"--XX\r\nA: " + b"x" * 10_000 + b"\r\n\r\n",
        field("model", b"x" * (FIELD_BYTES + 1)) + END,
        field("model", b"\xff") + END,
        field("x", b"") * (PARTS + 1) + END,
    ],
)
def test_a_broken_body_is_refused(body: bytes) -> None:
    scan = FormScan(TYPE)
    with pytest.raises(BadRequest):
        scan.feed(body)


@pytest.mark.parametrize("body", [b"", b"--X", field("a", b"b"), file(b"half")[:-20]])
def test_a_body_that_ends_too_early_is_refused(body: bytes) -> None:
    scan = FormScan(TYPE)
    scan.feed(body)
    with pytest.raises(BadRequest):
        scan.finish()


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_are_taken_or_refused(pieces: list[bytes]) -> None:
    scan = FormScan(TYPE)
    try:
        for piece in [b"--XX\r\n", *pieces]:
            scan.feed(piece)
        scan.finish()
    except BadRequest:
        pass
