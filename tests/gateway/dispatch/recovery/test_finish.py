"""An answer is whole when its engine said why it ends, whether or not its stream ends as others do."""

import time
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.recovery import AnswerRecord, RecordBudget
from gateway.dispatch.recovery.finish import MESSAGE_STOP, WINDOW_BYTES, closing_of
from tests.gateway.dispatch.recovery import engines, going_on
from tests.gateway.dispatch.recovery.engines import Model, Style

DONE = b"data: [DONE]\n\n"
MODEL = Model(("Once", ' "finish_reason": "stop"', " end"))


def chunk(index: int = 0, text: str | None = None, reason: str | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    choice = {"delta": delta, "finish_reason": reason, "index": index}
    return b"data: " + orjson.dumps({"id": "c", "choices": [choice]}) + b"\n\n"


def tool_call(index: int) -> bytes:
    call = {"index": index, "id": f"call_{index}", "function": {"name": "f", "arguments": "{}"}}
    choice = {"delta": {"tool_calls": [call]}, "finish_reason": None, "index": 0}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_a_finish_reason_is_enough_and_no_text_is_taken_for_one(route: str) -> None:
    engine = engines.chat if route == "chat" else engines.completions
    body = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "PROMPT:", "stream": True}
    stream = engine(MODEL, body, Style()).removesuffix(DONE)
    events = stream.split(b"\n\n")[:-1]
    for count in range(len(events)):
        assert closing_of(route, b"".join(event + b"\n\n" for event in events[:count])) is None
    assert closing_of(route, stream) == DONE


def test_a_message_is_ended_by_its_own_last_event() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    stream = engines.messages(MODEL, body, Style()).removesuffix(MESSAGE_STOP)
    assert closing_of("messages", stream) == MESSAGE_STOP
    assert closing_of("messages", stream[: stream.index(b"event: message_delta")]) is None


def test_a_response_has_no_reason_but_in_its_last_event() -> None:
    body = {"input": "Hi", "stream": True}
    stream = engines.responses(MODEL, body, Style())
    without_last = stream[: stream.rindex(b"event: response.")]
    assert closing_of("responses", without_last) is None


@pytest.mark.parametrize("reason", [None, ""])
def test_an_empty_reason_is_none(reason: str | None) -> None:
    assert closing_of("chat", chunk(text="a") + chunk(reason=reason)) is None


def test_every_choice_that_began_must_be_finished() -> None:
    begun = b"".join(chunk(index, "a") for index in range(3))
    assert closing_of("chat", begun + chunk(1, reason="stop")) is None
    assert closing_of("chat", begun + chunk(1, reason="stop") + chunk(0, reason="length")) is None
    ended = begun + chunk(1, reason="stop") + chunk(0, reason="length") + chunk(2, reason="stop")
    assert closing_of("chat", ended) == DONE


def test_a_choice_that_ended_long_before_the_others_counts() -> None:
    begun = chunk(0, "a") + chunk(1, "a") + chunk(0, reason="stop")
    more = chunk(1, "b") * (3 * WINDOW_BYTES // len(chunk(1, "b")))
    assert closing_of("chat", begun + more) is None
    assert closing_of("chat", begun + more + chunk(1, reason="stop")) == DONE


def test_several_tool_calls_are_one_choice() -> None:
    calls = chunk() + tool_call(0) + tool_call(1)
    assert closing_of("chat", calls) is None
    assert closing_of("chat", calls + chunk(reason="tool_calls")) == DONE


def records(stream: bytes, most_bytes: int, sizes: list[int]) -> Iterator[AnswerRecord]:
    record, position = AnswerRecord("chat", RecordBudget(), most_bytes), 0
    for size in [*sizes, len(stream)]:
        record.feed(stream[position : position + size])
        position += size
    yield record


@given(st.lists(st.integers(1, 60)), st.sampled_from([100, 1 << 20]), st.sampled_from(["", "\n", "\n\n"]))
def test_what_was_kept_or_not_and_however_it_came_the_client_gets_a_whole_stream(
    sizes: list[int], most_bytes: int, end: str
) -> None:
    """Without the last event's blank line too: it is that event's, not the next one's."""
    stream = chunk(text="Once") + chunk(text=" more") + chunk(reason="stop").rstrip() + end.encode()
    for record in records(stream, most_bytes, sizes):
        closing = record.closing()
        assert closing is not None
        seen = going_on.events(stream + closing)
        assert [event and event["choices"][0]["finish_reason"] for event in seen] == [
            None,
            None,
            "stop",
            None,
        ]


@given(st.lists(st.integers(1, 60)), st.sampled_from([100, 1 << 20]), st.data())
def test_an_answer_cut_before_its_reason_is_whole_is_none(
    sizes: list[int], most_bytes: int, data: st.DataObject
) -> None:
    stream = chunk(text="Once") + chunk(text=" more") + chunk(reason="stop").rstrip()
    cut = data.draw(st.integers(0, len(stream) - 1))
    for record in records(stream[:cut], most_bytes, sizes):
        assert record.closing() is None


def test_reasons_without_number_in_one_line_are_read_once() -> None:
    """The line was parsed for every reason in it: a second for an answer of a mebibyte."""
    choices = b",".join([b'{"index":1,"finish_reason":"x"}'] * 1900)
    data = b'data: {"choices":[%b]}\n\n' % choices * 16
    began_s = time.thread_time()
    assert closing_of("chat", data) == DONE
    assert time.thread_time() - began_s < 0.1
