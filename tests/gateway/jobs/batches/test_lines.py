"""Lines are found in pieces of any size, and what is wrong with one is said in OpenAI's words."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.batches import BatchError
from gateway.jobs.batches.lines import InputLine, LineRequest, LineSplitter, LineTooLong, read_line
from tests.gateway.jobs.batches.workshop import CHAT, Json, jsonl, request_line


def split(*pieces: bytes, most_bytes: int = 1000) -> list[InputLine]:
    splitter = LineSplitter(most_bytes)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    return [*found, *splitter.finish()]


@given(st.lists(st.binary(max_size=5), max_size=20))
def test_lines_are_where_they_are_however_the_file_comes(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    lines = split(*pieces)
    assert lines == split(whole)
    for line in lines:
        assert whole[line.start : line.start + len(line.data)] == line.data
        assert b"\n" not in line.data
        assert whole[line.end - 1 : line.end] == b"\n" or line.end == len(whole)
    assert [line.data for line in lines] == [
        each for each in whole.removeprefix(b"\xef\xbb\xbf").split(b"\n") if each.strip()
    ]


def test_blank_lines_count_and_are_none() -> None:
    assert [(line.number, line.data) for line in split(b"\n \r\na\n\nb")] == [(3, b"a"), (5, b"b")]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    (line,) = split(b"\xef\xbb\xbfab\n")
    assert (line.data, line.start) == (b"ab", 3)


@pytest.mark.parametrize(
    "pieces", [(b"ab\ncdefg\n",), (b"ab\ncd", b"efg"), (b"ab\n", b"c", b"d", b"e", b"f")]
)
def test_a_line_that_is_too_long_is_named(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(LineTooLong) as found:
        split(*pieces, most_bytes=3)
    assert found.value.number == 2


def read(line: Json | bytes) -> LineRequest | BatchError:
    data = jsonl(line)
    (found,) = split(b"x\n" + data, most_bytes=len(data))[1:]
    return read_line(found, CHAT)


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b'"text"', "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (request_line(None), "missing_required_parameter", "custom_id"),
        (request_line(1), "invalid_value", "custom_id"),
        (request_line(""), "invalid_value", "custom_id"),
        (request_line("x" * 513), "invalid_value", "custom_id"),
        (request_line("a\0b"), "invalid_value", "custom_id"),
        (request_line(method=None), "missing_required_parameter", "method"),
        (request_line(method="GET"), "invalid_method", "method"),
        (request_line(url=None), "missing_required_parameter", "url"),
        (request_line(url="/v1/embeddings"), "invalid_url", "url"),
        (request_line(body=None), "missing_required_parameter", "body"),
        (request_line(body="text"), "invalid_value", "body"),
        (request_line(body={}), "missing_required_parameter", "body.model"),
        (request_line(body={"model": 3}), "invalid_value", "body.model"),
        (request_line(body={"model": "a b"}), "invalid_value", "body.model"),
        (request_line(body={"model": "m", "stream": True}), "invalid_value", "body.stream"),
        (
            b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m"},'
            b'"body":{"model":"n"}}',
            "invalid_json_line",
            "body",
        ),
    ],
)
def test_what_is_wrong_is_said(line: Json | bytes, code: str, param: str | None) -> None:
    found = read(line)
    assert isinstance(found, BatchError)
    assert (found.code, found.param, found.line) == (code, param, 2)
    assert found.message.endswith(".") or param in found.message if param else found.message


@pytest.mark.parametrize(
    "line",
    [
        jsonl(request_line("a")).strip(),
        b'{"body" : {"model":"m","x":"}, \\"body\\": 1","y":{"body":2}} , "custom_id":"a","method":"POST",'
        b'"url":"/v1/chat/completions"}  ',
        b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":\t{"model": "m" } }',
    ],
)
def test_the_body_is_found_byte_for_byte(line: bytes) -> None:
    found = read(line)
    assert isinstance(found, LineRequest)
    assert orjson.loads(found.body) == orjson.loads(line)["body"]
    assert (b"x\n" + line)[found.start : found.stop] == found.body
    assert (found.custom_id, found.model) == ("a", "m")
