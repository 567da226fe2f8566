"""Usage is read, and the usage chunk taken out, however the bytes are grouped."""

import itertools

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.usage import HELD_BYTES, EventUsage, JsonUsage, PassThrough, read_usage, reader_for, usage_from
from shared.messages import Usage, UsageMode

TOKEN = b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"Hi"}}],"usage":null}\n\n'
FINAL = (
    b'data: {"id":"c1","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n'
)
DONE = b"data: [DONE]\n\n"
USAGE = Usage(7, 3)


def regroup(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


def run(reader: EventUsage | JsonUsage | PassThrough, pieces: list[bytes]) -> bytes:
    return b"".join([*(reader.feed(piece) for piece in pieces), reader.finish()])


events = st.sampled_from(
    [
        TOKEN,
        FINAL,
        DONE,
        TOKEN.replace(b"\n", b"\r\n"),
        FINAL.replace(b"\n", b"\r\n"),
        FINAL.replace(b"\n", b"\r"),
        b": ping\n\n",
        b": ping\r\n\r",
        b"\n",
        b"\r",
        b"event: x\ndata: 1\n\n",
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a \\"usage\\": {\\"prompt_tokens\\": 9}"}}]}\n\n',
        b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n',
        b'data: {"choices" : [ ], "usage" : {"prompt_tokens":1,"completion_tokens":2}}\n\n',
        b"data: rubbish \xff\xfe\n\n",
    ]
)


@given(st.lists(events, max_size=12), st.lists(st.integers(0, 5000), max_size=40), st.binary(max_size=20))
def test_any_grouping_of_the_bytes_gives_the_same_body_and_usage(
    parts: list[bytes], cuts: list[int], rest: bytes
) -> None:
    body = b"".join(parts) + rest
    whole, pieces = EventUsage(strip=True), EventUsage(strip=True)
    assert run(pieces, regroup(body, cuts)) == run(whole, [body])
    assert pieces.usage() == whole.usage()


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=10))
def test_without_stripping_every_byte_passes_at_once(body: bytes, cuts: list[int]) -> None:
    reader = EventUsage(strip=False)
    for piece in regroup(body + FINAL, cuts):
        assert reader.feed(piece) == piece
    assert reader.finish() == b""


@given(st.lists(st.integers(0, 400), max_size=20))
def test_the_usage_chunk_is_taken_out_and_its_numbers_kept(cuts: list[int]) -> None:
    reader = EventUsage(strip=True)
    assert run(reader, regroup(TOKEN + TOKEN + FINAL + DONE, cuts)) == TOKEN + TOKEN + DONE
    assert reader.usage() == USAGE


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b"\n\n"])
def test_blank_lines_pass_whether_they_came_with_the_usage_chunk_or_before(blank: bytes) -> None:
    for pieces in ([TOKEN + blank + FINAL], [TOKEN + blank, FINAL], [TOKEN, blank + FINAL]):
        assert run(EventUsage(strip=True), pieces) == TOKEN + blank


def test_the_usage_chunk_stays_when_the_client_asked_for_it() -> None:
    reader = EventUsage(strip=False)
    assert run(reader, [TOKEN, FINAL, DONE]) == TOKEN + FINAL + DONE
    assert reader.usage() == USAGE


def test_usage_on_every_chunk_leaves_the_bytes_alone() -> None:
    running = b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":7,"completion_tokens":%d}}\n\n'
    reader = EventUsage(strip=True)
    body = [running % count for count in range(1, 5)]
    assert run(reader, body) == b"".join(body)
    assert reader.usage() == Usage(7, 4)


def test_a_token_is_passed_on_before_its_event_is_finished() -> None:
    reader = EventUsage(strip=True)
    assert reader.feed(TOKEN[:60]) == TOKEN[:60]
    assert reader.feed(TOKEN[60:]) == TOKEN[60:]


def test_a_whole_token_is_passed_on_while_the_next_event_may_be_usage() -> None:
    reader = EventUsage(strip=True)
    assert reader.feed(TOKEN + FINAL[:20]) == TOKEN
    assert reader.feed(FINAL[20:] + DONE) == DONE


def test_an_event_too_long_to_be_usage_is_not_held_back() -> None:
    reader = EventUsage(strip=True)
    start = b"data: " + b"x" * HELD_BYTES
    assert reader.feed(start) == start
    assert reader.feed(b"y" * 300_000) == b"y" * 300_000
    assert reader.feed(b"\n\n") == b"\n\n"
    assert run(reader, [FINAL]) == b""


def test_what_is_held_back_at_the_end_of_the_body_is_passed_on() -> None:
    reader = EventUsage(strip=True)
    assert run(reader, [TOKEN, b'data: {"choices":[],"usa']) == TOKEN + b'data: {"choices":[],"usa'
    assert reader.usage() is None


def test_the_end_of_a_very_long_event_is_still_read() -> None:
    reader = EventUsage(strip=False)
    event = (
        b'event: response.completed\ndata: {"type":"response.completed","response":{"output":"%s",'
        b'"usage":{"input_tokens":11,"output_tokens":5,"input_tokens_details":{"cached_tokens":4}}}}\n\n'
    )
    run(reader, regroup(event % (b"z" * 1_000_000), list(range(0, 1_000_000, 3001))))
    assert reader.usage() == Usage(11, 5, 4)


def test_anthropics_two_halves_are_put_together() -> None:
    reader = EventUsage(strip=False)
    start = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 1}},
    }
    end = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 25}}
    run(reader, [b"event: %s\ndata: %s\n\n" % (b"x", orjson.dumps(event)) for event in (start, end)])
    assert reader.usage() == Usage(100, 25, 90)


@given(st.integers(0, 300_000), st.booleans(), st.lists(st.integers(0, 400_000), max_size=20))
def test_usage_of_a_json_answer_is_read_from_either_end(size: int, first: bool, cuts: list[int]) -> None:
    usage = {"usage": {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}}
    rest = {"choices": [{"message": {"content": "x" * size}}], "model": "m"}
    body = orjson.dumps({**usage, **rest} if first else {**rest, **usage})
    reader = JsonUsage()
    assert run(reader, regroup(body, cuts)) == body
    assert reader.usage() == USAGE


def test_memory_for_a_json_answer_is_bounded() -> None:
    reader = JsonUsage()
    for _ in range(100):
        reader.feed(b"x" * 50_000)
    assert len(reader._tail.read()) <= 64 * 1024 + 50_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"prompt_tokens": 5, "total_tokens": 5}, Usage(5, 0)),
        ({"total_tokens": 9}, Usage(9, 0)),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(5, 1, 4),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": None}, Usage(5, 1)),
        ({"prompt_tokens": -1, "completion_tokens": "x"}, None),
        ({"prompt_tokens": True}, None),
        ({"seconds": 3}, None),
    ],
)
def test_counts_are_read_from_every_known_shape(value: dict[str, object], expected: Usage | None) -> None:
    assert usage_from(value) == expected


@pytest.mark.parametrize(
    "text", [b"", b'"usage":{', b'"usage":{"prompt_tokens":', b'"usage":{]', b'"usage":null']
)
def test_a_usage_object_that_does_not_parse_is_none(text: bytes) -> None:
    assert read_usage(text) is None


def test_the_reader_fits_the_content_type() -> None:
    assert isinstance(
        reader_for(UsageMode.STRIP, (("content-type", "text/event-stream; charset=utf-8"),)), EventUsage
    )
    assert isinstance(reader_for(UsageMode.NONE, (("content-type", "application/json"),)), JsonUsage)
    assert isinstance(reader_for(UsageMode.NONE, (("content-type", "audio/mpeg"),)), PassThrough)
    assert isinstance(reader_for(UsageMode.STRIP, ()), PassThrough)
    for coding, reader in (("gzip", PassThrough), ("GZIP", PassThrough), ("Identity", JsonUsage)):
        packed = (("content-type", "application/json"), ("content-encoding", coding))
        assert isinstance(reader_for(UsageMode.NONE, packed), reader)


def test_usage_nested_without_end_counts_nothing() -> None:
    assert read_usage(b'{"usage":{"a":' + b"[" * 5000) is None
    assert read_usage(b'{"usage":{"a":' + b"[" * 3000 + b"]" * 3000 + b',"total_tokens":1}}') is None
