"""A form's file is passed on while it comes, in whatever order and pieces its parts do."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.exchange.form_upload import FIELD_BYTES, PARTS, FormUpload
from gateway.domain.errors import BadRequest

BOUNDARY = b"multipart/form-data; boundary=xyz"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    more = "" if filename is None else f'; filename="{filename}"\r\ncontent-type: text/plain'
    head = f'--xyz\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form_of(*parts: bytes, end: bytes = b"--xyz--\r\n") -> bytes:
    return b"".join(parts) + end


async def pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


async def read(body: bytes, size: int = 7) -> tuple[FormUpload, bytes]:
    form = FormUpload(BOUNDARY, pieces(body, size))
    return form, b"".join([piece async for piece in form.file()])


FILE = part("file", b"line 1\r\n--xy\r\nline 2", "a b.jsonl")


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("fields_first", [True, False])
async def test_fields_and_file_are_found(size: int, fields_first: bool) -> None:
    fields = (part("purpose", b"batch"), part("expires_after[seconds]", b"3600"))
    body = form_of(*fields, FILE) if fields_first else form_of(FILE, *fields)
    form, content = await read(body, size)
    assert content == b"line 1\r\n--xy\r\nline 2"
    assert form.fields == {"purpose": "batch", "expires_after[seconds]": "3600"}
    assert (form.filename, form.file_type) == ("a b.jsonl", "text/plain")


@given(st.binary(max_size=300).filter(lambda data: b"\r\n--xyz" not in data), st.integers(1, 50))
async def test_every_byte_of_the_file_comes_as_it_is(content: bytes, size: int) -> None:
    assert (await read(form_of(part("file", content, "f")), size))[1] == content


async def test_the_file_comes_before_the_form_has_ended() -> None:
    body = form_of(FILE)
    sent = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal sent
        for at in range(len(body)):
            sent += 1
            yield body[at : at + 1]

    form = FormUpload(BOUNDARY, counted())
    first = await anext(aiter(form.file()))
    assert first
    assert sent < len(body) / 2 + len(FILE)
    assert sent < len(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (form_of(part("purpose", b"batch")), "has no file in a field 'file'"),
        (form_of(FILE, FILE), "more than one file"),
        (form_of(part("purpose", b"a"), part("purpose", b"b"), FILE), "'purpose' more than once"),
        (form_of(part("purpose", b"x" * (FIELD_BYTES + 1)), FILE), "longer than"),
        (form_of(part("purpose", b"\xff"), FILE), "not UTF-8"),
        (form_of(*(part(f"f{n}", b"") for n in range(PARTS)), FILE), "more than 32 parts"),
        (form_of(FILE, end=b""), "ends before its last boundary"),
        (b"--xyz\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", "Maximum header size"),
        (b"--xyz\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(3000)), "Maximum header count"),
        (b"nothing of a form", "broken"),
        (b"", "ends before"),
    ],
)
async def test_what_is_no_such_form_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        await read(body)


@pytest.mark.parametrize(
    "content_type", [b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary="]
)
def test_another_content_type_is_refused(content_type: bytes) -> None:
    with pytest.raises(BadRequest):
        FormUpload(content_type, pieces(b"", 1))
