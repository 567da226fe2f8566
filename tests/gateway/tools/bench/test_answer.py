import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.bench.answer import BenchAnswer, status_failure
from gateway.tools.bench.plan import RequestFailed


def chunk(content: str | None, **more: object) -> bytes:
    delta = {"role": "assistant"} if content is None else {"content": content}
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}], **more}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n'
STREAM = chunk(None) + chunk("a") + chunk("data: b") + chunk("c") + USAGE + DONE


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_usage_and_output_are_found_wherever_the_pieces_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    answer = BenchAnswer(streamed=True)
    pieces = [STREAM[begin:end] for begin, end in itertools.pairwise(edges)]
    events = sum(map(answer.feed, filter(None, pieces)))
    assert events == 3, "those with output: neither the one that names the role, nor usage, nor [DONE]"
    assert answer.usage() == (7, 3)


def test_output_begins_with_the_first_event_that_carries_some() -> None:
    answer = BenchAnswer(streamed=True)
    assert answer.feed(b": waiting\n\n") == 0
    assert answer.feed(chunk(None)) == 0
    assert answer.feed(chunk("")) == 0
    assert not answer.first
    assert answer.feed(chunk("x")) == 1
    assert answer.first


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices": [{"text": "x"}]}\n\n',
        b'data: {"choices": [{"delta": {"reasoning_content": "x"}}]}\r\n\r\n',
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}\n\n',
        b"data: not json\n\n",
    ],
)
def test_output_is_known_in_every_shape_it_comes_in(event: bytes) -> None:
    answer = BenchAnswer(streamed=True)
    assert answer.feed(event) == 1


def test_what_only_ends_a_stream_is_no_token() -> None:
    def last(delta: dict[str, str]) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": "length"}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    answer = BenchAnswer(streamed=True)
    assert answer.feed(chunk("a") + chunk('"usage": {')) == 2
    assert answer.feed(last({}) + USAGE + DONE) == 0
    assert answer.feed(last({"content": "b"})) == 1, "the last token may come with the reason"
    assert answer.feed(chunk("c", usage={"prompt_tokens": 7, "completion_tokens": 2})) == 1


def test_a_stream_that_breaks_says_how() -> None:
    answer = BenchAnswer(streamed=True)
    answer.feed(chunk("x") + b'data: {"error": {"message": "gone", "code": "engine_lost"}}\n\n')
    with pytest.raises(RequestFailed, match="gone") as caught:
        answer.usage()
    assert caught.value.kind == "stream engine_lost"


def test_a_stream_without_its_end_is_no_right_answer() -> None:
    answer = BenchAnswer(streamed=True)
    answer.feed(chunk("x"))
    with pytest.raises(RequestFailed, match="DONE"):
        answer.usage()


def test_a_finish_reason_is_an_end_where_a_server_sends_no_other() -> None:
    answer = BenchAnswer(streamed=True)
    usage = {"prompt_tokens": 7, "completion_tokens": 1}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    answer.feed(chunk("x") + b"data: " + json.dumps(last).encode() + b"\n\n")
    assert answer.usage() == (7, 1)


def test_tokens_of_a_plain_answer_are_the_server_s() -> None:
    answer = BenchAnswer(streamed=False)
    assert answer.feed(b'{"choices": [], "usage": {"prompt_tokens": 2, ') == 0
    assert answer.feed(b'"completion_tokens": 5}}') == 0
    assert answer.usage() == (2, 5)


def test_an_endless_first_event_is_not_kept() -> None:
    answer = BenchAnswer(streamed=True)
    answer.feed(b"x" * 3_000_000)
    with pytest.raises(RequestFailed, match="endless"):
        answer.feed(b"x" * 3_000_000)


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b'{"error": {"message": "slow down", "code": "queue_full"}}', "HTTP 429 queue_full", "slow down"),
        (b'{"error": {"message": "no", "code": null, "type": "bad"}}', "HTTP 429 bad", "no"),
        (b'{"error": "plain"}', "HTTP 429", "plain"),
        (b"<html>busy</html>", "HTTP 429", "<html>busy</html>"),
        (b"", "HTTP 429", ""),
    ],
)
def test_an_error_is_told_by_its_status_and_code(body: bytes, kind: str, said: str) -> None:
    failure = status_failure(429, body)
    assert (failure.kind, str(failure)) == (kind, said)


def test_a_plain_answer_is_read_whole_however_many_pieces_it_comes_in() -> None:
    answer = BenchAnswer(streamed=False)
    body = json.dumps({"data": [{"embedding": [0.5] * 500}], "usage": {"prompt_tokens": 9}}).encode()
    for begin in range(0, len(body), 10):
        assert answer.feed(body[begin : begin + 10]) == 0
    assert answer.usage() == (9, 0)


def test_a_plain_answer_that_is_too_long_to_be_kept_is_right_and_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.tools.bench.answer._WHOLE_BYTES", 20)
    answer = BenchAnswer(streamed=False)
    for piece in (b'{"usage": ', b'{"prompt_tokens": 9, ', b'"a": 1', b"}}"):
        answer.feed(piece)
    assert answer.value() is None
    assert answer.usage() is None


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b'{"error": "Unexpected endpoint or method"}', "HTTP 200", "Unexpected endpoint or method"),
        (b'{"error": {"message": "gone", "code": "lost"}}', "HTTP 200 lost", "gone"),
        (b"<html>welcome</html>", "malformed", "an answer is no JSON object: <html>welcome</html>"),
        (b"", "malformed", "an answer is no JSON object: "),
    ],
)
def test_a_plain_answer_of_status_200_may_be_an_error_all_the_same(body: bytes, kind: str, said: str) -> None:
    answer = BenchAnswer(streamed=False)
    answer.feed(body)
    with pytest.raises(RequestFailed) as caught:
        answer.usage()
    assert (caught.value.kind, str(caught.value)) == (kind, said)
