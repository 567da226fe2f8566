"""Usage is read, and the usage chunk taken out, however the bytes are grouped."""

import itertools
import re
import time

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.requests.event_usage import HELD_BYTES, JUDGED_EVENTS, EventUsage, is_usage_chunk
from agent.requests.usage import JsonUsage, PassThrough
from shared.protocol.messages import Usage

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


def split(body: bytes) -> list[bytes]:
    """Each event from its first byte that ends no line, and the line ends before it, one after the other."""
    parts = []
    while body:
        blank = len(body) - len(body.lstrip(b"\r\n"))
        found = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)").search(body, blank)
        end = len(body) if found is None else found.end()
        parts += [body[:blank], body[blank:end]]
        body = body[end:]
    return parts


@given(st.lists(events, max_size=12), st.lists(st.integers(0, 5000), max_size=40), st.binary(max_size=20))
def test_what_is_taken_out_is_each_event_that_is_a_usage_chunk_and_nothing_else(
    parts: list[bytes], cuts: list[int], rest: bytes
) -> None:
    body = b"".join(parts) + rest
    expected = b"".join(part for part in split(body) if not is_usage_chunk(part))
    assert run(EventUsage(strip=True), regroup(body, cuts)) == expected


@pytest.mark.parametrize("end", [b"\r\r", b"\n\r", b"\r\n\r"])
def test_the_line_feed_that_belongs_to_a_usage_chunks_end_goes_with_it(end: bytes) -> None:
    final = FINAL.rstrip() + end
    assert run(EventUsage(strip=True), [final, b"\n" + DONE]) == DONE
    assert run(EventUsage(strip=True), [final[:9], final[9:], b"\n" + DONE]) == DONE
    assert run(EventUsage(strip=True), [final, DONE]) == DONE
    assert run(EventUsage(strip=True), [final]) == b""


@pytest.mark.parametrize("blank", [b"\n", b"\r", b"\r\n", b"\r\r\r"])
def test_line_ends_between_events_pass_at_once(blank: bytes) -> None:
    reader = EventUsage(strip=True)
    assert reader.feed(blank) == blank
    assert reader.feed(TOKEN + blank) == TOKEN + blank
    assert reader.feed(DONE.rstrip() + b"\r\r") == DONE.rstrip() + b"\r\r"


@pytest.mark.parametrize("strip", [True, False])
@pytest.mark.parametrize("begun", [b"", b"data: {"])
@pytest.mark.parametrize(
    "unit",
    [
        *(b"\r", b"\n", b"\r\n", b":\n", b"data:\n", b":\r\r", b'"usage"', b'"usage":{', b'"usage":{\r\r'),
        *(
            b'"choices":[]\r\r',
            b'data:{"choices":[],"usage":{}}\n\n',
            b'data:{"choices":[[]],"usage":{}}\n\n',
        ),
    ],
)
def test_no_piece_stops_the_event_loop(unit: bytes, begun: bytes, strip: bool) -> None:
    """An engine's connection is read in pieces of 256 KiB at most."""
    piece = unit * (256 * 1024 // len(unit))
    took_s = []
    for _ in range(3):
        reader = EventUsage(strip=strip)
        reader.feed(begun)
        began_s = time.thread_time()
        reader.feed(piece)
        reader.finish()
        took_s.append(time.thread_time() - began_s)
    assert min(took_s) < 0.015, "about 2 ms are meant; the rest is for slow machines"


def test_of_very_many_usage_chunks_in_one_piece_the_first_are_taken_out() -> None:
    assert run(EventUsage(strip=True), [FINAL * (JUDGED_EVENTS + 3)]) == FINAL * 3
