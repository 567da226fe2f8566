"""Cuts a stream, goes on at another engine, and reads the whole as OpenAI's SDK does."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from openai._streaming import SSEDecoder
from openai.types import Completion, CompletionUsage
from openai.types import responses as types
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from gateway.dispatch.recovery import AnswerProgress, AnswerRecord, ContinuationReading, RecordBudget


def read_progress(
    route: str, request_body: bytes, record: AnswerRecord, *, usage_wanted: bool | None = None
) -> AnswerProgress:
    """How far the answer in ``record`` came, read at once."""
    return ContinuationReading(route, request_body, record, usage_wanted=usage_wanted).progress()


Continue = Callable[[dict[str, Any]], bytes]


def events(stream: bytes) -> list[dict[str, Any] | None]:
    """The JSON of every event as the SDK's decoder finds them; None for ``[DONE]``."""
    found: list[dict[str, Any] | None] = []
    for event in SSEDecoder().iter_bytes(iter([stream])):
        if event.data.strip():
            found.append(None if event.data == "[DONE]" else orjson.loads(event.data))
    return found


def chunkings(data: bytes, seed: int | None) -> Iterator[bytes]:
    """``data`` whole (None), byte by byte (1) or in pieces of random lengths."""
    if seed is None:
        yield data
        return
    rng, position = random.Random(seed), 0
    while position < len(data):
        size = 1 if seed == 1 else rng.randint(1, 200)
        yield data[position : position + size]
        position += size


class Client:
    """What one client gets of one answer, over any number of engines."""

    def __init__(self, route: str, body: Mapping[str, Any], way: str, seed: int | None = None) -> None:
        self.route = route
        self.body = orjson.dumps(body)
        self.way = way
        self.seed = seed
        self.record = AnswerRecord(route, RecordBudget())
        self.got = b""
        self.asked = 0

    def feed(self, stream: bytes) -> None:
        for chunk in chunkings(stream, self.seed):
            self.got += self.record.feed(chunk)

    def go_on(self, engine: Continue, cut: int | None = None, usage_wanted: bool | None = None) -> None:
        """What was held back is lost; the rest comes from ``engine``, or its first ``cut`` bytes."""
        record, self.record = self.record, AnswerRecord(self.route, RecordBudget())
        progress = read_progress(self.route, self.body, record, usage_wanted=usage_wanted)
        assert self.record.feed(record.data) == self.got
        if progress.closing is not None:
            self.got += self.record.feed(progress.closing)
            return
        self.asked += 1
        stream = engine(orjson.loads(progress.continued_request(self.way)))
        splicer = progress.splicer()
        for chunk in chunkings(stream if cut is None else stream[:cut], self.seed):
            self.got += self.record.feed(splicer.feed(chunk))
        if cut is None:
            self.got += self.record.feed(splicer.finish()) + self.record.finish()


@dataclass
class Seen:
    """An answer, as far as two of them must be alike."""

    text: str = ""
    ids: set[tuple[Any, ...]] = field(default_factory=set)
    roles: int = 0
    reasons: list[str] = field(default_factory=list)
    usage: list[tuple[int, int, int]] = field(default_factory=list)
    done: bool = False


def _chunks(stream: bytes, seen: Seen) -> Iterator[dict[str, Any]]:
    """The events before ``[DONE]``, behind which nothing may come."""
    for value in events(stream):
        assert not seen.done
        if value is None:
            seen.done = True
        else:
            yield value


def _tokens(usage: CompletionUsage) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def seen_in_chat(stream: bytes) -> Seen:
    seen = Seen()
    for value in _chunks(stream, seen):
        chunk = ChatCompletionChunk.model_validate(value)
        seen.ids.add((chunk.id, chunk.created, chunk.model, chunk.system_fingerprint, chunk.object))
        for choice in chunk.choices:
            assert choice.index == 0
            assert not seen.reasons
            seen.text += choice.delta.content or ""
            seen.roles += choice.delta.role is not None
            seen.reasons += [choice.finish_reason] if choice.finish_reason else []
        if chunk.usage is not None and (not chunk.choices or chunk.choices[0].finish_reason):
            seen.usage.append(_tokens(chunk.usage))
    return seen


def seen_in_completions(stream: bytes) -> Seen:
    seen = Seen()
    for value in _chunks(stream, seen):
        reasons = [choice["finish_reason"] for choice in value["choices"] if choice["finish_reason"]]
        seen.reasons += reasons
        for raw in value["choices"]:
            raw["finish_reason"] = raw["finish_reason"] or "stop"  # the SDK's type forgets streams
        chunk = Completion.model_validate(value)
        seen.ids.add((chunk.id, chunk.created, chunk.model, chunk.system_fingerprint, chunk.object))
        for choice in chunk.choices:
            assert choice.index == 0
            seen.text += choice.text
        if chunk.usage is not None and (reasons or not chunk.choices):
            seen.usage.append(_tokens(chunk.usage))
    return seen


def cuts(stream: bytes, client: Callable[[], Client]) -> Iterator[tuple[int, Client]]:
    """A client for each different thing that a stream cut at some byte leaves behind.

    Every byte is tried; what is left of an unfinished event is dropped, so one cut in each event is enough to
    go on from.
    """
    before = None
    for cut in range(1, len(stream) + 1):
        cut_off = client()
        cut_off.feed(stream[:cut])
        assert stream.startswith(cut_off.got + cut_off.record._held)
        assert len(cut_off.got + cut_off.record._held) == cut
        if cut_off.got != before:
            before = cut_off.got
            yield cut, cut_off


def seen_in_messages(stream: bytes) -> Seen:
    """As Anthropic's SDK puts a message together."""
    seen = Seen()
    kinds: list[str] = []
    usage: dict[str, int] = {}
    for value in events(stream):
        assert value is not None
        assert not seen.done
        kinds.append(value["type"])
        if value["type"] == "message_start":
            message = value["message"]
            seen.ids.add((message["id"], message["model"]))
            seen.roles += message["role"] == "assistant"
            usage = dict(message["usage"])
        elif value["type"] == "content_block_delta":
            assert value["index"] == 0
            assert kinds.count("content_block_start") == 1
            assert "content_block_stop" not in kinds
            seen.text += value["delta"]["text"]
        elif value["type"] == "message_delta":
            assert kinds.count("content_block_start") == kinds.count("content_block_stop")
            seen.reasons.append(value["delta"]["stop_reason"])
            usage |= value["usage"]
        seen.done = value["type"] == "message_stop"
    seen.usage.append((usage["input_tokens"], usage["output_tokens"], 0))
    return seen


_OF_RESPONSES: dict[str, type[BaseModel]] = {
    "response.created": types.ResponseCreatedEvent,
    "response.in_progress": types.ResponseInProgressEvent,
    "response.output_item.added": types.ResponseOutputItemAddedEvent,
    "response.content_part.added": types.ResponseContentPartAddedEvent,
    "response.output_text.delta": types.ResponseTextDeltaEvent,
    "response.output_text.done": types.ResponseTextDoneEvent,
    "response.content_part.done": types.ResponseContentPartDoneEvent,
    "response.output_item.done": types.ResponseOutputItemDoneEvent,
    "response.completed": types.ResponseCompletedEvent,
    "response.incomplete": types.ResponseIncompleteEvent,
}


def seen_in_responses(stream: bytes) -> Seen:
    """Everything about the events must be in order: types, numbers, ids, and the text four times over."""
    seen = Seen()
    kinds: list[str] = []
    texts: list[str] = []
    places: set[tuple[str, int, int]] = set()
    for number, value in enumerate(events(stream)):
        assert value is not None
        assert not seen.done
        assert value["sequence_number"] == number
        _OF_RESPONSES[value["type"]].model_validate(value)
        if not kinds or kinds[-1] != value["type"]:
            kinds.append(value["type"])
        if "item_id" in value:
            places.add((value["item_id"], value["output_index"], value["content_index"]))
        if "item" in value:
            places.add((value["item"]["id"], value["output_index"], 0))
        seen.text += value.get("delta", "")
        texts += [value["text"]] if "text" in value else []
        if value["type"].endswith("done"):
            texts += [
                part["text"] for part in value.get("item", {}).get("content", [value.get("part")]) if part
            ]
        response = value.get("response", {})
        if response:
            seen.ids.add((response["id"], response["created_at"], response["model"]))
            seen.ids.add((response["max_output_tokens"],))
        if response.get("status") in ("completed", "incomplete"):
            details = response["incomplete_details"]
            seen.reasons.append(details["reason"] if details else "stop")
            seen.done = True
            usage = response["usage"]
            seen.usage.append((usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]))
            for item in response["output"]:
                places.add((item["id"], 0, 0))
                texts += [part["text"] for part in item["content"]]
                seen.reasons.append(item["status"])
    assert len(places) <= 1
    assert len(kinds) == len(set(kinds))
    assert kinds == [kind for kind in _OF_RESPONSES if kind in kinds]
    seen.roles = len(texts)
    assert set(texts) <= {seen.text}
    return seen
