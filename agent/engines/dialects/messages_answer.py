"""Chat completions as answers, events and errors of Anthropic's ``/v1/messages``. Pure."""

import uuid
from typing import Any

import orjson

from agent.engines.dialects.dialect import ChatAnswer, ChatUsage, JsonObject, ToolCallPiece, text_member

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(status: int, error: JsonObject) -> JsonObject:
    """``error`` in Anthropic's shape; the code, which that has no place for, is kept beside the message."""
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    said: JsonObject = {"type": kind, "message": text_member(error, "message")}
    if error.get("code") is not None:
        said["code"] = error["code"]
    return {"type": "error", "error": said}


def message_usage(usage: ChatUsage) -> JsonObject:
    """Anthropic counts what came from a cache apart."""
    return {
        "input_tokens": max(0, usage.prompt - usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


def tool_input(arguments: str) -> Any:
    """A call's arguments as an object. Those that are none are kept as Anthropic's documentation says to tell
    a model of them."""
    try:
        value = orjson.loads(arguments) if arguments.strip() else {}
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


class MessageWriter:
    """Implements :class:`agent.engines.dialects.dialect.AnswerWriter`."""

    def __init__(self, request: JsonObject) -> None:
        self._model = text_member(request, "model")
        stops = request.get("stop_sequences")
        self._stops = stops if isinstance(stops, list) else []

    def whole(self, answer: ChatAnswer) -> JsonObject:
        content: list[JsonObject] = []
        if answer.reasoning:
            content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
        if answer.text or not (answer.calls or answer.reasoning):
            content.append({"type": "text", "text": answer.text})
        for call in answer.calls:
            name, given = call.name, tool_input(call.arguments)
            content.append({"type": "tool_use", "id": call.id or new_tool_id(), "name": name, "input": given})
        ended = self.ending(answer.finish, answer.stop, called=bool(answer.calls))
        return self.message(content) | ended | {"usage": message_usage(answer.usage)}

    def events(self) -> "MessageEvents":
        return MessageEvents(self)

    def message(self, content: list[JsonObject]) -> JsonObject:
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": message_usage(ChatUsage()),
        }

    def ending(self, finish: str, stop: str | None, *, called: bool) -> JsonObject:
        """Why it ended; an engine may say ``stop`` of an answer that calls tools."""
        reason = _STOP_REASONS.get(finish, "end_turn")
        if called and reason == "end_turn":
            reason = "tool_use"
        if reason == "end_turn" and stop is not None and stop in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": reason, "stop_sequence": None}


class MessageEvents:
    """Implements :class:`agent.engines.dialects.dialect.EventWriter`.

    Blocks follow each other, so a call that begins while another goes on waits until the other is whole.
    """

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer
        self._blocks = 0
        """How many have begun."""
        self._open: str | int | None = None
        """What the block that is open holds: ``text``, ``thinking`` or the call of this number."""
        self._waiting: dict[int, list[ToolCallPiece]] = {}
        self._called = False

    def begin(self) -> bytes:
        return written({"type": "message_start", "message": self._writer.message([])})

    def reasoning(self, text: str) -> bytes:
        block = {"type": "thinking", "thinking": "", "signature": ""}
        return self._begin_block("thinking", block) + self._delta("thinking_delta", "thinking", text)

    def text(self, text: str) -> bytes:
        begun = self._begin_block("text", {"type": "text", "text": ""})
        return begun + self._delta("text_delta", "text", text)

    def call(self, piece: ToolCallPiece) -> bytes:
        if isinstance(self._open, int) and self._open != piece.index:
            self._waiting.setdefault(piece.index, []).append(piece)
            return b""
        return self._call(piece)

    def _call(self, piece: ToolCallPiece) -> bytes:
        self._called = True
        block = {"type": "tool_use", "id": piece.id or new_tool_id(), "name": piece.name, "input": {}}
        out = b"" if self._open == piece.index else self._begin_block(piece.index, block)
        return (
            out + self._delta("input_json_delta", "partial_json", piece.arguments) if piece.arguments else out
        )

    def end(self, finish: str, stop: str | None, usage: ChatUsage) -> bytes:
        out = self._close()
        if not self._blocks:
            out += self._begin_block("text", {"type": "text", "text": ""}) + self._close()
        delta = self._writer.ending(finish, stop, called=self._called)
        out += written({"type": "message_delta", "delta": delta, "usage": message_usage(usage)})
        return out + written({"type": "message_stop"})

    def fail(self, status: int, error: JsonObject) -> bytes:
        return written(error_body(status, error))

    def _begin_block(self, holds: str | int, block: JsonObject) -> bytes:
        if self._open == holds:
            return b""
        out = self._close()
        self._open = holds
        self._blocks += 1
        return out + written(
            {"type": "content_block_start", "index": self._blocks - 1, "content_block": block}
        )

    def _delta(self, kind: str, name: str, text: str) -> bytes:
        delta = {"type": kind, name: text}
        return written({"type": "content_block_delta", "index": self._blocks - 1, "delta": delta})

    def _close(self) -> bytes:
        """The end of the open block, and the calls that waited for it, whole."""
        if self._open is None:
            return b""
        out = b""
        if self._open == "thinking":
            out = self._delta("signature_delta", "signature", "")
        self._open = None
        out += written({"type": "content_block_stop", "index": self._blocks - 1})
        waiting, self._waiting = self._waiting, {}
        for pieces in waiting.values():
            out += b"".join([self._call(piece) for piece in pieces])
            out += written({"type": "content_block_stop", "index": self._blocks - 1})
            self._open = None
        return out


def new_tool_id() -> str:
    return f"toolu_{uuid.uuid4().hex[:24]}"


def written(value: JsonObject) -> bytes:
    """An event as the newer dialects write it: its type is also its name."""
    return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), orjson.dumps(value))
