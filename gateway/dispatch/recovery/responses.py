"""Answers of the Responses API: numbered events, items with ids, a last event that holds all once more."""

from dataclasses import dataclass
from typing import Any, TypeGuard

from gateway.dispatch.recovery.continued_request import AnswerProgress, AnswerRead, PlacedContent, in_input
from gateway.dispatch.recovery.events import DONE, SpliceFailed, written
from gateway.dispatch.recovery.original_request import OriginalRequest
from gateway.dispatch.recovery.splicing import ContinuationJoiner, ContinuedUsage, Splicer
from shared.process.server_sent_events import ServerSentEvent

DELTA = "response.output_text.delta"
TEXT_DONE = "response.output_text.done"
PART_DONE = "response.content_part.done"
ITEM_DONE = "response.output_item.done"
ITEM_ADDED = "response.output_item.added"
PART_ADDED = "response.content_part.added"
ANNOUNCEMENTS = ("response.created", "response.queued", "response.in_progress")
ENDS = ("response.completed", "response.incomplete", "response.failed")

_STRANGE = "the engine sent something else than the events of a text"


@dataclass(slots=True)
class ResponsesRead(AnswerRead):
    """What the client has of a response."""

    number: int | None = None
    """The last event's; None when events are not numbered."""
    item: dict[str, Any] | None = None
    """The message as it was announced."""
    item_id: str | None = None
    part: bool = False
    """The text was announced."""
    over: frozenset[str] = frozenset()
    """Types of the events that said that text, part and item are whole."""

    @property
    def begun(self) -> bool:
        return self.item is not None or bool(self.transcript.events)

    def read(self, event: ServerSentEvent) -> None:
        if event.data is None or event.is_done or self.done:
            return
        value = event.value() or {}
        kind = value.get("type")
        number = value.get("sequence_number")
        if isinstance(number, int):
            self.number = number
        if kind in ANNOUNCEMENTS:
            response = value.get("response")
            self.first = self.first or (response if isinstance(response, dict) else None)
        elif kind in ENDS:
            self.done = True
        elif kind == ITEM_ADDED:
            self._read_item(value)
        elif value.get("output_index") != 0 or value.get("content_index", 0) != 0:
            self.rule_out("the answer has more than one item" if "output_index" in value else _STRANGE)
        elif kind in (TEXT_DONE, PART_DONE, ITEM_DONE):
            self.over |= {kind}
        elif kind == PART_ADDED:
            part = value.get("part")
            self._read_text(part.get("text") if _is(part, "output_text") else None, value)
            self.part = True
        elif kind == DELTA:
            self._read_text(value.get("delta"), value)
        else:
            self.rule_out("the answer holds more than text")

    def _read_item(self, value: dict[str, Any]) -> None:
        item = value.get("item")
        if self.item is not None or value.get("output_index") != 0:
            self.rule_out("the answer has more than one item")
        elif not _is(item, "message") or item.get("content"):
            self.rule_out("the answer holds more than text")
        else:
            self.item, self.item_id = item, item.get("id")

    def _read_text(self, text: Any, value: dict[str, Any]) -> None:
        if not isinstance(text, str) or value.get("logprobs"):
            self.rule_out("the answer holds more than text")
            return
        self.item_id = self.item_id or value.get("item_id")
        self.transcript.add(text)

    def progress(self, original: OriginalRequest, usage_wanted: bool | None) -> "ResponsesProgress":
        """Usage is always part of a response, so ``usage_wanted`` says nothing here."""
        return ResponsesProgress(original, self)


def _is(value: Any, kind: str) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and value.get("type") == kind


_STRANGE_MORE = "the engine that went on with the answer sent something else than its events"
_MORE = "the engine that went on with the answer sent more than text"

_OWN = frozenset(
    ("status", "output", "output_text", "usage", "error", "incomplete_details", "completed_at", "metrics")
)
"""Members of a response that come about by answering; all others were announced with the first event."""

_LATER = ("function_call", "custom_tool_call")
"""Items that may follow a text: they are whole in the continuation."""


class ResponsesProgress(AnswerProgress):
    """How far a response came."""

    limit_name = "max_output_tokens"

    def __init__(self, original: OriginalRequest, received: ResponsesRead) -> None:
        super().__init__(original, received)
        self._received = received
        self.finished = received.done
        self.closing = b"" if received.done else None
        if received.done:
            return
        self._check(received)
        self.finished = self._exhausted

    def _place(self, mode: str, text: str) -> PlacedContent:
        return in_input(self._original, mode, text, self._received.item_id or "msg_0")

    def splicer(self) -> "ResponsesSplicer":
        return ResponsesSplicer(self._received, self._joiner(), self._tally())


class ResponsesSplicer(Splicer):
    """Joins a continuation to what the client ``received``.

    ``joiner`` is None where the text is as long as it may be, and only usage is wanted.
    """

    def __init__(
        self, received: ResponsesRead, joiner: ContinuationJoiner | None, tally: ContinuedUsage
    ) -> None:
        super().__init__(tally)
        self._received = received
        self._joiner = joiner
        self._number = received.number
        self._text = received.transcript.text
        self._over = set(received.over)
        self._part = received.part
        self._status = "completed" if joiner is not None else "incomplete"
        self._ours: int | None = None
        """The item of the continuation that goes on with the text."""
        self._shift = 0
        """How many more items the answer has than the continuation."""

    def _rest(self) -> bytes:
        return b"" if self._joiner is None or self._over else self._piece(self._joiner.finish())

    def _event(self, event: ServerSentEvent) -> bytes:
        if event.is_done:
            return DONE
        value = event.value()
        kind = None if value is None else value.get("type")
        if value is None or not isinstance(kind, str) or kind in ("error", "response.failed"):
            raise SpliceFailed(_STRANGE_MORE)
        if kind in ANNOUNCEMENTS:
            return b"" if self._received.first is not None else self._written(value)
        if kind in ENDS:
            return self._end(value)
        if not self._received.begun:
            return self._written(value)
        return self._in_item(kind, value)

    def _in_item(self, kind: str, value: dict[str, Any]) -> bytes:
        """An event of an item: of the text's, or of one that follows it."""
        index = value.get("output_index")
        if not isinstance(index, int):
            raise SpliceFailed(_STRANGE_MORE)
        if kind == ITEM_ADDED:
            return self._item_added(index, value)
        if self._ours is None and not self._shift:
            self._ours = index  # an engine that announces no items
        if index != self._ours:
            return (
                b"" if self._joiner is None else self._written(value | {"output_index": index + self._shift})
            )
        if kind == PART_ADDED:
            return self._part_added(value)
        if kind == DELTA:
            return self._delta(value)
        if kind in (TEXT_DONE, PART_DONE, ITEM_DONE):
            item = value.get("item")
            if isinstance(item, dict) and item.get("status") == "incomplete":
                self._status = "incomplete"
            return self._done_until(kind)
        raise SpliceFailed(_MORE)

    def _item_added(self, index: int, value: dict[str, Any]) -> bytes:
        item = value.get("item")
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "message" and self._ours is None and not self._shift:
            self._ours = index
            return b""
        if self._joiner is None:
            return b""
        if kind not in _LATER:
            raise SpliceFailed(_MORE)
        if self._ours is None:
            self._shift = 1
        out = self._done_until(ITEM_DONE)
        return out + self._written(value | {"output_index": index + self._shift})

    def _part_added(self, value: dict[str, Any]) -> bytes:
        part = value.get("part")
        if not isinstance(part, dict) or part.get("type") != "output_text":
            raise SpliceFailed(_MORE)
        if self._part or self._text:
            return self._delta({"delta": part.get("text", "")})
        self._part = True
        place = {"item_id": self._received.item_id, "output_index": 0, "content_index": 0}
        return self._written(value | place)

    def _delta(self, value: dict[str, Any]) -> bytes:
        text = value.get("delta")
        if not isinstance(text, str) or value.get("logprobs"):
            raise SpliceFailed(_MORE)
        return b"" if self._joiner is None else self._piece(self._joiner.feed(text))

    def _piece(self, text: str) -> bytes:
        if not text:
            return b""
        if self._over:
            raise SpliceFailed("the engine that went on with the answer had more to say after its end")
        self._text += text
        return self._of_text({"type": DELTA, "delta": text, "logprobs": []})

    def _done_until(self, last: str) -> bytes:
        """The events that say that text, part and item are whole, up to ``last``, without those that the
        client has, or that its first engine never announced."""
        out = b""
        if TEXT_DONE not in self._over and self._joiner is not None:
            out = self._piece(self._joiner.finish())
        part = {"type": "output_text", "text": self._text, "annotations": [], "logprobs": []}
        events: dict[str, dict[str, Any]] = {
            TEXT_DONE: {"text": self._text, "logprobs": []},
            PART_DONE: {"part": part},
            ITEM_DONE: {"item": self._item(self._status)},
        }
        for kind, more in events.items():
            wanted = self._received.item is not None if kind == ITEM_DONE else self._part
            if kind not in self._over:
                self._over.add(kind)
                out += self._of_text({"type": kind, **more}, whole_item=kind == ITEM_DONE) if wanted else b""
            if kind == last:
                break
        return out

    def _item(self, status: str) -> dict[str, Any]:
        """The text's item, whole."""
        item = self._received.item or {"type": "message", "role": "assistant"}
        part = {"type": "output_text", "text": self._text, "annotations": [], "logprobs": []}
        return {**item, "id": self._received.item_id, "status": status, "content": [part]}

    def _last_item(self, output: Any) -> dict[str, Any]:
        """The text's item in the last event: the text's part has the members that the engine gives it."""
        item = self._item(self._status)
        first = output[0] if isinstance(output, list) and output else None
        parts = first.get("content") if _is(first, "message") else None
        if isinstance(parts, list) and len(parts) == 1 and _is(parts[0], "output_text"):
            part = parts[0]
            if not part.get("annotations"):  # they would be of places in another text
                item["content"] = [{**part, "text": self._text}]
        return item

    def _end(self, value: dict[str, Any]) -> bytes:
        response = value.get("response")
        if not isinstance(response, dict):
            raise SpliceFailed(_STRANGE_MORE)
        whole = response | {
            name: item for name, item in (self._received.first or {}).items() if name not in _OWN
        }
        usage = response.get("usage")
        if isinstance(usage, dict):
            whole["usage"] = self._tally.responses(usage)
        if not self._received.begun:
            return self._written(value | {"response": whole})
        if value["type"] != "response.completed":
            self._status = "incomplete"
        out = self._done_until(ITEM_DONE)
        items = [] if self._joiner is None else self._items_after(response.get("output"))
        whole["output"] = [self._last_item(response.get("output")), *items]
        if self._joiner is None:
            value = value | {"type": "response.incomplete"}
            whole |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return out + self._written(value | {"response": whole})

    def _items_after(self, output: Any) -> list[Any]:
        """The items of the continuation that follow the text."""
        items = output if isinstance(output, list) else []
        later = [item for item in items if isinstance(item, dict) and item.get("type") in _LATER]
        if len(later) + any(
            isinstance(item, dict) and item.get("type") == "message" for item in items
        ) != len(items):
            raise SpliceFailed(_MORE)
        return later

    def _of_text(self, value: dict[str, Any], *, whole_item: bool = False) -> bytes:
        """An event of the text's item."""
        if whole_item:
            return self._written(value | {"output_index": 0})
        return self._written(
            value | {"item_id": self._received.item_id, "output_index": 0, "content_index": 0}
        )

    def _written(self, value: dict[str, Any]) -> bytes:
        """The event under the next number, if the answer's events have one."""
        if self._number is not None:
            self._number += 1
            value = value | {"sequence_number": self._number}
        elif self._received.first is not None:
            value = {name: item for name, item in value.items() if name != "sequence_number"}
        return written(value, value["type"])
