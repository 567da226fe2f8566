"""Chat completions are read as engines write them."""

from collections.abc import Mapping, Sequence

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engines.dialects.chat import ChatChunkReader, NoChatAnswer, answer_of, error_of
from agent.engines.dialects.dialect import ChatUsage
from agent.engines.dialects.messages_answer import MessageWriter
from tests.agent.engines.dialects.streams import CHUNKS, Recorded, stream


def test_a_stream_cut_at_any_byte_says_the_same() -> None:
    data = stream(CHUNKS)
    for size_bytes in (1, 2, 3, 7, 50):
        writer = Recorded()
        reader = ChatChunkReader(writer)
        for start in range(0, len(data), size_bytes):
            reader.feed(data[start : start + size_bytes])
        reader.finish()
        assert writer.said == [
            "begin",
            "think hm",
            "text ab",
            'call 0 c1 f {"a"',
            "call 1 c2 g {}",
            "call 0   :1}",
            "end tool_calls ChatUsage(prompt=5, completion=7, cached=2, reasoning=1)",
        ]


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_no_bytes_lead_to_anything_but_the_named_error(pieces: list[bytes]) -> None:
    reader = ChatChunkReader(MessageWriter({"model": "m"}).events())
    try:
        for piece in pieces:
            reader.feed(piece)
        assert b"message_stop" not in reader.finish()
    except NoChatAnswer:
        pass  # the only error that bytes may lead to


def test_a_stream_without_a_finish_reason_gets_no_end() -> None:
    writer = Recorded()
    reader = ChatChunkReader(writer)
    reader.feed(stream(CHUNKS[:2]))
    reader.finish()
    assert not any(said.startswith("end") for said in writer.said)


def test_calls_that_all_have_the_number_zero_are_told_apart_by_their_ids() -> None:
    writer = Recorded()
    reader = ChatChunkReader(writer)
    for id_ in ("a", "b"):
        call = {"index": 0, "id": id_, "function": {"name": "f", "arguments": "{}"}}
        reader.feed(stream([_chunk([call])]))
    assert writer.said[1:] == ["call 0 a f {}", "call 1 b f {}"]


def _chunk(calls: Sequence[Mapping[str, object]]) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"tool_calls": calls}}]}


def test_an_error_in_the_stream_ends_it() -> None:
    writer = Recorded()
    reader = ChatChunkReader(writer)
    reader.feed(stream([{"error": {"message": "broken", "code": 3}}, *CHUNKS]))
    assert writer.said == ["begin", "fail broken"]


def test_an_answer_in_one_piece() -> None:
    message = {"role": "assistant", "content": "t", "reasoning": "r"}
    usage = {"prompt_tokens": 2, "completion_tokens": 1}
    answer = answer_of({"choices": [{"message": message, "finish_reason": "length"}], "usage": usage})
    assert (answer.text, answer.reasoning, answer.finish) == ("t", "r", "length")
    assert answer.usage == ChatUsage(2, 1)
    with pytest.raises(NoChatAnswer):
        answer_of({"choices": []})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no", "code": "c"}}, "no"),
        ({"error": "no"}, "no"),
        ({"object": "error", "message": "no"}, "no"),
        ({"detail": "no"}, "no"),
        ("no", "no"),
        (None, "The engine answered with status 400."),
    ],
)
def test_errors_of_every_shape_are_understood(body: object, message: str) -> None:
    assert error_of(orjson.loads(orjson.dumps(body)), 400)["message"] == message
