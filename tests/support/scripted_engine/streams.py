"""Streamed answers: one class per dialect, from what is planned to events as real engines write them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from tests.support.scripted_engine.answers import (
    choices_of,
    finish_of,
    other_choice,
    output_text,
    response_item,
    response_of,
    usage_of,
)
from tests.support.scripted_engine.planned import Planned
from tests.support.scripted_engine.script import Script


def event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named_event(value: Mapping[str, Any]) -> bytes:
    """An event that also says its type in the ``event:`` field, as the newer dialects do."""
    return b"event: " + str(value["type"]).encode() + b"\n" + event(value)


class Streamed:
    """One streamed answer: ``opening``, then ``chunk`` for each of ``count`` tokens, then ``closing``."""

    repeats_head = False
    """Engines of this dialect may say again what they go on from; the others have an option for that."""

    def __init__(
        self,
        body: Mapping[str, Any],
        planned: Planned,
        script: Script,
        ids: Callable[[str], str],
        *,
        ends: bool = True,
    ) -> None:
        """``ends``: it sends the event that ends its dialect's streams."""
        self.ends = ends
        self.body = body
        self.planned = planned
        self.script = script
        self.ids = ids
        self.model = str(body.get("model", ""))
        self.tokens = planned.tokens
        self.count = len(self.tokens)
        self.created = int(time.time())
        self.prepare()

    def prepare(self) -> None:
        """Make what all events of this answer share."""

    def opening(self) -> bytes:
        return b""

    def chunk(self, index: int, now_s: float) -> bytes:
        """The events of the token ``index``; -1 is all that was there before, said again."""
        raise NotImplementedError

    def closing(self) -> bytes:
        raise NotImplementedError

    def text(self, index: int) -> str:
        return self.planned.so_far if index < 0 else self.tokens[index]

    def stamp(self, now_s: float) -> dict[str, float]:
        return {"sent_s": now_s} if self.script.stamp else {}


class Completions(Streamed):
    """``/v1/completions``; chat differs in the names, and in what may stand in the place of text."""

    kind = "text_completion"
    prefix = "cmpl"
    key = "text"

    def prepare(self) -> None:
        self.id = self.ids(self.prefix)
        self.choices = choices_of(self.body)
        self.others = [other_choice(self.planned, index).tokens for index in range(1, self.choices)]

    def piece(self, text: str) -> object:
        return text

    def chunk(self, index: int, now_s: float) -> bytes:
        return b"".join(
            event(self._choice(self.piece(text), None, place, text) | self.stamp(now_s))
            for place, text in enumerate([self.text(index), *(tokens[index] for tokens in self.others)])
        )

    def finish(self) -> str:
        return finish_of(self.planned)

    def closing(self) -> bytes:
        ends = (self._choice(self.piece(""), self.finish(), place) for place in range(self.choices))
        last = b"".join(event(end) for end in ends)
        if (self.body.get("stream_options") or {}).get("include_usage"):
            last += event(self._base() | {"choices": [], "usage": usage_of(self.planned, self.choices)})
        return last + b"data: [DONE]\n\n" if self.ends else last

    def _base(self) -> dict[str, Any]:
        return {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}

    def _choice(
        self, piece: object, finish: str | None, place: int = 0, text: str | None = None
    ) -> dict[str, Any]:
        logprobs = None
        if text is not None and self.body.get("logprobs"):
            logprobs = {"content": [{"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
        choice = {"index": place, self.key: piece, "finish_reason": finish, "logprobs": logprobs}
        return self._base() | {"choices": [choice]}


class Chat(Completions):
    kind = "chat.completion.chunk"
    prefix = "chatcmpl"
    key = "delta"

    def prepare(self) -> None:
        super().prepare()
        self.calls_tool = bool(self.body.get("tools"))

    def piece(self, text: str) -> object:
        if not text:
            return {}
        if self.calls_tool:
            return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        return {"content": text}

    def finish(self) -> str:
        return "tool_calls" if self.calls_tool else super().finish()

    def opening(self) -> bytes:
        delta: dict[str, Any] = {"role": "assistant", "content": None if self.calls_tool else ""}
        if self.calls_tool:
            function = {"name": "note", "arguments": ""}
            call = {"index": 0, "id": self.ids("call"), "type": "function", "function": function}
            delta["tool_calls"] = [call]
        return b"".join(event(self._choice(delta, None, place)) for place in range(self.choices))


class Responses(Streamed):
    """``/v1/responses``, with every event between the first and the last."""

    repeats_head = True

    def prepare(self) -> None:
        self.id, self.item = self.ids("resp"), self.ids("msg")
        self._number = -1

    def opening(self) -> bytes:
        response = self._response(over=False)
        return (
            self._event("response.created", response=response)
            + self._event("response.in_progress", response=response)
            + self._event("response.output_item.added", output_index=0, item=response_item(self.item, None))
            + self._event("response.content_part.added", **self._place(), part=output_text(""))
        )

    def chunk(self, index: int, now_s: float) -> bytes:
        more = {"delta": self.text(index), "logprobs": []} | self.stamp(now_s)
        return self._event("response.output_text.delta", **self._place(), **more)

    def closing(self) -> bytes:
        text = "".join(self.tokens)
        item = response_item(self.item, text)
        kind = "response.completed" if self.planned.stopped else "response.incomplete"
        return (
            self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            + self._event("response.content_part.done", **self._place(), part=output_text(text))
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._event(kind, response=self._response(over=True))
        )

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **more: object) -> bytes:
        self._number += 1
        return named_event({"type": kind, "sequence_number": self._number} | more)

    def _response(self, *, over: bool) -> dict[str, Any]:
        return response_of(self.model, self.planned, self.id, self.item, self.created, over=over)


class Messages(Streamed):
    """Anthropic's ``/v1/messages``."""

    repeats_head = True

    def opening(self) -> bytes:
        message: dict[str, Any] = {"id": self.ids("msg"), "type": "message", "role": "assistant"}
        message |= {"content": [], "model": self.model, "stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": self.planned.prompt_tokens, "output_tokens": 0}
        block = {"type": "text", "text": ""}
        return named_event({"type": "message_start", "message": message | {"usage": usage}}) + named_event(
            {"type": "content_block_start", "index": 0, "content_block": block}
        )

    def chunk(self, index: int, now_s: float) -> bytes:
        delta = {"type": "text_delta", "text": self.text(index)}
        return named_event({"type": "content_block_delta", "index": 0, "delta": delta} | self.stamp(now_s))

    def closing(self) -> bytes:
        reason = "end_turn" if self.planned.stopped else "max_tokens"
        delta = {"stop_reason": reason, "stop_sequence": None}
        usage = {"output_tokens": self.count}
        return (
            named_event({"type": "content_block_stop", "index": 0})
            + named_event({"type": "message_delta", "delta": delta, "usage": usage})
            + (named_event({"type": "message_stop"}) if self.ends else b"")
        )


STREAMED: Mapping[str, type[Streamed]] = {
    "chat": Chat,
    "completions": Completions,
    "responses": Responses,
    "messages": Messages,
}
