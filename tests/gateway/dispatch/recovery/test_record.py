"""What is recorded of an answer, and whether its engine said why it ends."""

import random
import time
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.recovery import AnswerRecord, RecordBudget
from gateway.dispatch.recovery.record import HELD_BYTES, MESSAGE_STOP, WINDOW_BYTES, closing_of
from tests.gateway.dispatch.recovery import engines, going_on
from tests.gateway.dispatch.recovery.engines import Model, Style

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def _record(route: str = "chat", most_bytes: int = 1024 * 1024) -> AnswerRecord:
    return AnswerRecord(route, RecordBudget(), most_bytes)


def _events(separator: bytes) -> list[bytes]:
    lines = [
        [b"event: a", b'data: {"type":"a","text":"\\n\\n"}'],
        [b": a comment"],
        [b"data:{", b'data:"b":1}'],
        [b"id: 7", b"data: [DONE]"],
    ]
    return [separator.join(event) + 2 * separator for event in lines]


@pytest.mark.parametrize("separator", [b"\n", b"\r\n"])
def test_only_whole_events_get_out_wherever_the_stream_is_cut(separator: bytes) -> None:
    events = _events(separator)
    stream = b"".join(events)
    ends = {sum(map(len, events[:count])) for count in range(len(events) + 1)}
    for cut in range(len(stream) + 1):
        record = _record()
        out = record.feed(stream[:cut])
        assert out == record.data
        assert len(out) == max(end for end in ends if end <= cut)
        assert record._held == stream[len(out) : cut]
        assert not record.overflowed


@given(st.sampled_from([b"\n", b"\r\n", b"\r"]), st.integers(0, 2**32))
def test_however_the_bytes_are_grouped_all_of_them_get_out_in_order(separator: bytes, seed: int) -> None:
    stream, rng, record, out = b"".join(_events(separator)), random.Random(seed), _record(), b""
    rest = stream
    while rest:
        size = rng.randint(1, 20)
        out += record.feed(rest[:size])
        rest = rest[size:]
    out += record.finish()
    assert out == stream == record.data
    assert record.complete
    assert not record.overflowed


def test_what_was_held_back_gets_out_when_the_stream_is_over_in_order() -> None:
    record = _record()
    assert record.feed(EVENT + b"data: [DO") == EVENT
    assert record.feed(b"NE]") == b""
    assert record.finish() == b"data: [DONE]"
    assert record.complete


@pytest.mark.parametrize(
    "stream",
    [
        b'{"text":"a"}\n{"text":"b"}\n',
        b'data: {"text":"a"}\ndata: {"text":"b"}\n',
        b"x" * (HELD_BYTES + 1),
        b"data: " + b"x" * HELD_BYTES,
    ],
)
def test_a_stream_that_is_not_understood_passes_at_once_and_is_not_recorded(stream: bytes) -> None:
    record = _record()
    assert record.feed(EVENT) + record.feed(stream) == EVENT + stream
    assert record.overflowed
    assert record.feed(b"any") == b"any"
    assert record.feed(b"thing\n\n") == b"thing\n\n"
    assert record.finish() == b""


def test_a_stream_that_is_not_understood_never_stalls_byte_by_byte() -> None:
    stream, record, out = b'{"text":"a"}\n' * 3, _record(), b""
    for place in range(len(stream)):
        out += record.feed(stream[place : place + 1])
        assert place + 1 - len(out) < len(b'{"text":"a"}\n')
    assert out == stream


def test_an_event_of_several_data_lines_is_understood() -> None:
    record, event = _record(), b'data: {\ndata: "choices":[{\ndata: "index":0}]}\n\n'
    assert b"".join(record.feed(event[i : i + 1]) for i in range(len(event))) == event
    assert not record.overflowed


def test_a_record_above_its_bound_passes_all_and_gives_its_memory_back() -> None:
    budget = RecordBudget()
    record = AnswerRecord("chat", budget, 2 * len(EVENT))
    record.feed(EVENT)
    record.feed(EVENT)
    assert budget.taken_bytes == 2 * len(EVENT)
    assert record.feed(EVENT) == EVENT
    assert record.overflowed
    assert (budget.taken_bytes, record.data) == (0, b"")


def test_records_together_stay_within_their_budget() -> None:
    budget = RecordBudget(3 * len(EVENT))
    first, second = AnswerRecord("chat", budget), AnswerRecord("chat", budget)
    first.feed(EVENT)
    second.feed(EVENT + EVENT)
    assert first.feed(EVENT) == EVENT
    assert first.overflowed
    assert not second.overflowed
    assert budget.taken_bytes == 2 * len(EVENT)
    second.release()
    second.release()
    first.release()
    assert budget.taken_bytes == 0


@pytest.mark.parametrize(
    ("route", "end"),
    [
        ("chat", DONE),
        ("completions", b"data:[DONE]\r\n\r\n"),
        ("responses", b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n'),
        ("responses", b'data: {"response":{},"type": "response.incomplete"}\n\n'),
        ("messages", b'event: message_stop\ndata: {"type": "message_stop"}\n\n'),
    ],
)
@pytest.mark.parametrize("most_bytes", [1024 * 1024, 1])
def test_the_routes_own_end_is_seen_recorded_or_not(route: str, end: bytes, most_bytes: int) -> None:
    record = _record(route, most_bytes)
    record.feed(EVENT)
    assert not record.complete
    for place in range(len(end)):
        assert not record.complete or record.overflowed
        record.feed(end[place : place + 1])
    assert record.complete
    record.release()
    assert record.complete


def test_text_that_looks_like_an_end_is_none() -> None:
    for route in ("chat", "responses", "messages"):
        record = _record(route)
        record.feed(
            b'data: {"text":"data: [DONE] \\"type\\":\\"message_stop\\",\\"type\\":'
            b'\\"response.failed\\""}\n\n'
        )
        assert not record.complete


def test_an_end_of_before_is_none_when_more_came_after_it() -> None:
    record = _record()
    record.feed(DONE + EVENT)
    assert not record.complete


@pytest.mark.parametrize("cut", [b"", b"d", b"data", b'data: {"choices"', b": ping"])
def test_a_stream_that_ends_before_its_first_event_does_not_end_well(cut: bytes) -> None:
    record = AnswerRecord("chat", RecordBudget())
    assert record.feed(cut) == b""
    assert not record.ends_well


@pytest.mark.parametrize("answer", [b"hello", b'{"choices": []}\n', b"no events\nin\nhere"])
def test_what_is_no_stream_of_events_ends_where_it_ends(answer: bytes) -> None:
    record = AnswerRecord("chat", RecordBudget())
    out = record.feed(answer)
    assert record.ends_well
    assert out + record.finish() == answer


@pytest.mark.parametrize("last", [b"", b"\n\n"])
@pytest.mark.parametrize("most_bytes", [10, 1000])
def test_the_end_is_seen_in_what_went_out_unfed(most_bytes: int, last: bytes) -> None:
    record = _record(most_bytes=most_bytes)
    record.fresh += [EVENT, DONE, *([last] if last else [])]
    assert record.complete
    assert record.overflowed == (most_bytes == 10)
    assert record.complete


@given(st.integers(0, 2**32), st.sampled_from([30, 200, 1024 * 1024]))
def test_events_that_go_out_unfed_while_that_is_allowed_are_kept_as_if_they_were_fed(
    seed: int, most_bytes: int
) -> None:
    rng = random.Random(seed)
    stream = b"".join([EVENT * rng.randint(1, 4), *_events(b"\n"), EVENT * rng.randint(0, 2)])
    fed, unfed = _record(most_bytes=most_bytes), _record(most_bytes=most_bytes)
    position = 0
    while position < len(stream):
        end = rng.choice([stream.find(b"\n\n", position) + 2, position + rng.randint(1, 60)])
        piece = stream[position:end]
        position += len(piece)
        out = fed.feed(piece)
        if unfed.between and piece.endswith(b"\n\n"):
            unfed.fresh.append(piece)
            assert out == piece
        else:
            assert unfed.feed(piece) == out
        if not fed.overflowed and rng.random() < 0.5:
            whole = b"data: [DONE]" in fed.data.rstrip(b"\n").rpartition(b"\n\n")[2]
            assert unfed.complete == fed.complete == whole
        if rng.random() < 0.3:
            unfed.settle()
    assert unfed._held == fed._held
    assert (unfed.data, unfed.overflowed) == (fed.data, fed.overflowed)
    assert (unfed.size_bytes, unfed.complete, unfed.ends_well) == (
        fed.size_bytes,
        fed.complete,
        fed.ends_well,
    )


@pytest.mark.parametrize(
    "unit",
    [b":\n", b":\r", b"\r", b"\n", b":\r\n", b":\r\r", b"data:\n", b"data: {\n", b"\r\n\r", b"id\n", b":"],
)
def test_no_bytes_take_much_longer_than_others(unit: bytes) -> None:
    """64 KiB at once, in the processor's time: the line by line reading of before took 30 ms."""
    data, times = unit * (64 * 1024 // len(unit)), []
    for _ in range(5):
        record = _record()
        began_s = time.thread_time()
        out = record.feed(data)
        times.append(time.thread_time() - began_s)
        assert out + record.finish() == data
    assert min(times) < 0.01


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
