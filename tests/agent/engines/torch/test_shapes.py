"""The bodies that OpenAI's SDKs read."""

import base64
import struct
from typing import Any

import orjson
import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from agent.engines.torch import shapes
from agent.engines.torch.shapes import DONE, CallDelta, ChoiceChunk, TextShape, TokenUsage

USAGE = TokenUsage(prompt_tokens=3, completion_tokens=2)


def shape(*, chat: bool = True, include_usage: bool = False) -> TextShape:
    return TextShape(chat=chat, id="x-1", model="m", created=5, include_usage=include_usage)


def events(stream: bytes) -> list[Any]:
    assert stream.endswith(b"\n\n")
    return [orjson.loads(line.removeprefix(b"data: ")) for line in stream.split(b"\n\n") if line]


def stream_of(form: TextShape) -> bytes:
    texts = [ChoiceChunk(0, "Hel"), ChoiceChunk(0, "lo"), ChoiceChunk(0, finish_reason="stop")]
    return form.first() + b"".join(map(form.chunk, texts)) + form.end(USAGE)


def whole(form: TextShape, text: str, reason: str) -> Any:
    return form.whole([ChoiceChunk(0, text), ChoiceChunk(0, finish_reason=reason)], USAGE)


def test_a_chat_stream_is_role_texts_reason_done() -> None:
    stream = stream_of(shape())
    assert stream.endswith(DONE)
    chunks = [ChatCompletionChunk.model_validate(e) for e in events(stream.removesuffix(DONE))]
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", None, None, None]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert all("usage" not in e for e in events(stream.removesuffix(DONE)))


def test_usage_is_its_own_last_chunk_and_null_in_the_others() -> None:
    found = events(stream_of(shape(include_usage=True)).removesuffix(DONE))
    assert [e["usage"] for e in found[:-1]] == [None] * 4
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_a_completion_stream_has_texts_and_no_role() -> None:
    form = shape(chat=False)
    assert form.first() == b""
    choices = [event["choices"][0] for event in events(stream_of(form).removesuffix(DONE))]
    assert "".join(choice["text"] for choice in choices) == "Hello"
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]


def test_whole_answers_are_what_the_sdk_expects() -> None:
    chat = ChatCompletion.model_validate(whole(shape(), "Hello", "length"), strict=True)
    assert chat.choices[0].message.content == "Hello"
    assert chat.usage is not None
    assert chat.usage.total_tokens == 5
    text = Completion.model_validate(whole(shape(chat=False), "Hello", "stop"), strict=True)
    assert text.choices[0].text == "Hello"


CALLS = (
    ChoiceChunk(0, calls=(CallDelta(0, "call_1", "add", '{"a"'),)),
    ChoiceChunk(0, calls=(CallDelta(0, arguments=": 1}"),)),
    ChoiceChunk(0, calls=(CallDelta(1, "call_2", "now", "{}"),)),
    ChoiceChunk(0, finish_reason="tool_calls"),
)


def test_calls_of_tools_are_what_the_sdk_expects() -> None:
    message = ChatCompletion.model_validate(shape().whole(CALLS, USAGE), strict=True).choices[0].message
    assert message.content is None
    assert [call.model_dump()["function"] for call in message.tool_calls or ()] == [
        {"name": "add", "arguments": '{"a": 1}'},
        {"name": "now", "arguments": "{}"},
    ]


def test_calls_of_tools_are_streamed_piece_by_piece() -> None:
    stream = b"".join(map(shape().chunk, CALLS))
    chunks = [ChatCompletionChunk.model_validate(each) for each in events(stream)]
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [(call.index, call.id) for call in deltas] == [(0, "call_1"), (0, None), (1, "call_2")]
    pieces = [call.function.arguments for call in deltas if call.function is not None]
    assert pieces == ['{"a"', ": 1}", "{}"]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_choices_are_told_apart_by_their_index() -> None:
    chunks = [ChoiceChunk(1, "b"), ChoiceChunk(0, "a"), ChoiceChunk(1, "c")]
    chunks += [ChoiceChunk(0, finish_reason="length"), ChoiceChunk(1, finish_reason="stop")]
    answer = Completion.model_validate(shape(chat=False).whole(chunks, USAGE), strict=True)
    found = [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices]
    assert found == [(0, "a", "length"), (1, "bc", "stop")]
    roles = [event["choices"][0]["index"] for event in events(shape().first(choices=2))]
    assert roles == [0, 1]


@pytest.mark.parametrize("as_base64", [False, True])
def test_embeddings_come_as_numbers_or_base64(as_base64: bool) -> None:
    vectors = [[0.5, -0.25], [1.0, 0.0]]
    body = shapes.embeddings(vectors, model="m", prompt_tokens=4, as_base64=as_base64)
    found = [item["embedding"] for item in body["data"]]
    if as_base64:
        found = [list(struct.unpack("<2f", base64.b64decode(item))) for item in found]
    else:
        CreateEmbeddingResponse.model_validate(body)
    assert found == vectors
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
