"""Chat completions as answers, events and errors of OpenAI's ``/v1/responses``. Pure."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from agent.engines.dialects.dialect import ChatAnswer, ChatUsage, JsonObject, ToolCallPiece, text_member
from agent.engines.dialects.messages_answer import written

_ECHOED = (
    *("instructions", "max_output_tokens", "metadata", "reasoning", "temperature", "top_p", "text", "user"),
    *("max_tool_calls", "safety_identifier", "prompt_cache_key"),
)
"""Members of a request that its response repeats, if it has them."""

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is not complete."""


def error_body(status: int, error: JsonObject) -> JsonObject:
    """OpenAI's shape."""
    return {"error": error}


def response_usage(usage: ChatUsage) -> JsonObject:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def text_part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message_item(item_id: str, text: str | None, status: str) -> JsonObject:
    """The item of the text; still empty while ``text`` is None."""
    content = [] if text is None else [text_part(text)]
    return {"type": "message", "id": item_id, "role": "assistant", "status": status, "content": content}


def reasoning_item(item_id: str, text: str | None, status: str) -> JsonObject:
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": item_id, "summary": [], "content": content, "status": status}


def call_item(item_id: str, call_id: str, name: str, arguments: str, status: str) -> JsonObject:
    return {
        "type": "function_call",
        "id": item_id,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def last_status(finish: str) -> str:
    """Of the last item of an output; those before it are whole."""
    return "incomplete" if finish in _CUT else "completed"


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


class ResponseWriter:
    """Implements :class:`agent.engines.dialects.dialect.AnswerWriter`."""

    def __init__(self, request: JsonObject, now: Callable[[], float] = time.time) -> None:
        """Raises ``orjson.JSONEncodeError`` for a request that is nested too deeply."""
        self._now = now
        self._told = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(now()),
            "model": text_member(request, "model"),
            "parallel_tool_calls": request.get("parallel_tool_calls", True) is not False,
            "tool_choice": request.get("tool_choice") or "auto",
            "tools": request.get("tools") or [],
            "store": False,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "previous_response_id": None,
            **{name: request[name] for name in _ECHOED if request.get(name) is not None},
        }
        orjson.dumps({"response": self._told})  # what is nested too deeply is refused before it is answered

    def whole(self, answer: ChatAnswer) -> JsonObject:
        output: list[JsonObject] = []
        if answer.reasoning:
            output.append(reasoning_item(new_id("rs"), answer.reasoning, "completed"))
        if answer.text or not (answer.calls or answer.reasoning):
            output.append(message_item(new_id("msg"), answer.text, "completed"))
        for call in answer.calls:
            ids = new_id("fc"), call.id or new_id("call")
            output.append(call_item(*ids, call.name, call.arguments, "completed"))
        output[-1]["status"] = last_status(answer.finish)
        return self.response(output, answer.finish, answer.usage)

    def events(self) -> "ResponseEvents":
        return ResponseEvents(self)

    def begun(self) -> JsonObject:
        return self._told | {"status": "in_progress", "output": [], "usage": None}

    def response(self, output: list[JsonObject], finish: str, usage: ChatUsage) -> JsonObject:
        """The whole response."""
        cut = _CUT.get(finish)
        return self._told | {
            "status": "completed" if cut is None else "incomplete",
            "incomplete_details": None if cut is None else {"reason": cut},
            "output": output,
            "usage": response_usage(usage),
            "completed_at": int(self._now()) if cut is None else None,
        }

    def failed(self, error: JsonObject) -> JsonObject:
        said = {"code": "server_error", "message": text_member(error, "message")}
        return self._told | {"status": "failed", "output": [], "usage": None, "error": said}


@dataclass(slots=True)
class _Item:
    """An item of the output that is being written."""

    kind: str
    index: int
    id: str
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    over: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def whole(self, status: str) -> JsonObject:
        if self.kind == "call":
            return call_item(self.id, self.call_id, self.name, self.text, status)
        make = message_item if self.kind == "text" else reasoning_item
        return make(self.id, self.text, status)


class ResponseEvents:
    """Implements :class:`agent.engines.dialects.dialect.EventWriter`. Items have numbers, so calls may go on
    beside each other."""

    def __init__(self, writer: ResponseWriter) -> None:
        self._writer = writer
        self._number = -1
        self._items: list[_Item] = []
        self._calls: dict[int, _Item] = {}

    def begin(self) -> bytes:
        begun = self._writer.begun()
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def reasoning(self, text: str) -> bytes:
        item, out = self._current("reasoning", "rs")
        if not item.pieces:
            item_begun = reasoning_item(item.id, None, "in_progress")
            part = {"type": "reasoning_text", "text": ""}
            out += self._added(item, item_begun) + self._of(item, "response.content_part.added", part=part)
        item.pieces.append(text)
        return out + self._of(item, "response.reasoning_text.delta", delta=text)

    def text(self, text: str) -> bytes:
        item, out = self._current("text", "msg")
        if not item.pieces:
            item_begun = message_item(item.id, None, "in_progress")
            out += self._added(item, item_begun)
            out += self._of(item, "response.content_part.added", part=text_part(""))
        item.pieces.append(text)
        return out + self._of(item, "response.output_text.delta", delta=text, logprobs=[])

    def call(self, piece: ToolCallPiece) -> bytes:
        item, out = self._calls.get(piece.index), b""
        if item is None:
            out = self._close_open()
            item = _Item("call", len(self._items), new_id("fc"), piece.id or new_id("call"), piece.name)
            self._items.append(item)
            self._calls[piece.index] = item
            out += self._added(item, call_item(item.id, item.call_id, item.name, "", "in_progress"))
        if not piece.arguments:
            return out
        item.pieces.append(piece.arguments)
        return out + self._of_item(item, "response.function_call_arguments.delta", delta=piece.arguments)

    def end(self, finish: str, stop: str | None, usage: ChatUsage) -> bytes:
        out = b"" if self._items else self.text("")
        *_, last = self._items
        states = [last_status(finish) if item is last else "completed" for item in self._items]
        items = list(zip(self._items, states, strict=True))
        out += b"".join([self._close(item, status) for item, status in items if not item.over])
        output = [item.whole(status) for item, status in items]
        response = self._writer.response(output, finish, usage)
        return out + self._event(f"response.{response['status']}", response=response)

    def fail(self, status: int, error: JsonObject) -> bytes:
        return self._event("response.failed", response=self._writer.failed(error))

    def _current(self, kind: str, prefix: str) -> tuple[_Item, bytes]:
        """The item that text of this kind belongs to, and the events that end the one before."""
        if self._items and self._items[-1].kind == kind and not self._items[-1].over:
            return self._items[-1], b""
        out = self._close_open()
        self._items.append(_Item(kind, len(self._items), new_id(prefix)))
        return self._items[-1], out

    def _close_open(self) -> bytes:
        """Ends the last item if it is text: a call may go on."""
        open_items = [item for item in self._items[-1:] if not item.over and item.kind != "call"]
        return b"".join([self._close(item, "completed") for item in open_items])

    def _close(self, item: _Item, status: str) -> bytes:
        item.over = True
        text = item.text
        if item.kind == "call":
            more = {"arguments": text, "name": item.name}
            out = self._of_item(item, "response.function_call_arguments.done", **more)
        elif item.kind == "text":
            out = self._of(item, "response.output_text.done", text=text, logprobs=[])
            out += self._of(item, "response.content_part.done", part=text_part(text))
        else:
            part = {"type": "reasoning_text", "text": text}
            out = self._of(item, "response.reasoning_text.done", text=text)
            out += self._of(item, "response.content_part.done", part=part)
        whole = item.whole(status)
        return out + self._event("response.output_item.done", output_index=item.index, item=whole)

    def _added(self, item: _Item, begun: JsonObject) -> bytes:
        return self._event("response.output_item.added", output_index=item.index, item=begun)

    def _of(self, item: _Item, kind: str, **more: object) -> bytes:
        """An event of an item's only part."""
        return self._of_item(item, kind, content_index=0, **more)

    def _of_item(self, item: _Item, kind: str, **more: object) -> bytes:
        return self._event(kind, item_id=item.id, output_index=item.index, **more)

    def _event(self, kind: str, **more: object) -> bytes:
        self._number += 1
        return written({"type": kind, "sequence_number": self._number, **more})
