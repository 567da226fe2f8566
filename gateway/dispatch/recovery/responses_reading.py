"""What the events of a Responses API stream say."""

from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from gateway.dispatch.recovery.events import ServerEvent
from gateway.dispatch.recovery.seam import CountedText

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
class ResponsesRead:
    """What the client has. ``trouble``: why nobody can go on, should anything of the answer be missing."""

    transcript: CountedText = field(default_factory=CountedText)
    first: dict[str, Any] | None = None
    """The response as it was announced."""
    number: int | None = None
    """The last event's; None when events are not numbered."""
    item: dict[str, Any] | None = None
    """The message as it was announced."""
    item_id: str | None = None
    part: bool = False
    """The text was announced."""
    over: set[str] = field(default_factory=set)
    """Types of the events that said that text, part and item are whole."""
    done: bool = False
    trouble: str | None = None

    @property
    def begun(self) -> bool:
        return self.item is not None or bool(self.transcript.events)

    def read(self, event: ServerEvent) -> None:
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
            self._stop("the answer has more than one item" if "output_index" in value else _STRANGE)
        elif kind in (TEXT_DONE, PART_DONE, ITEM_DONE):
            self.over.add(kind)
        elif kind == PART_ADDED:
            part = value.get("part")
            self._read_text(part.get("text") if _is(part, "output_text") else None, value)
            self.part = True
        elif kind == DELTA:
            self._read_text(value.get("delta"), value)
        else:
            self._stop("the answer holds more than text")

    def _read_item(self, value: dict[str, Any]) -> None:
        item = value.get("item")
        if self.item is not None or value.get("output_index") != 0:
            self._stop("the answer has more than one item")
        elif not _is(item, "message") or item.get("content"):
            self._stop("the answer holds more than text")
        else:
            self.item, self.item_id = item, item.get("id")

    def _read_text(self, text: Any, value: dict[str, Any]) -> None:
        if not isinstance(text, str) or value.get("logprobs"):
            self._stop("the answer holds more than text")
            return
        self.item_id = self.item_id or value.get("item_id")
        self.transcript.add(text)

    def copy(self) -> "ResponsesRead":
        return replace(self, transcript=self.transcript.copy(), over=set(self.over))

    def _stop(self, why: str) -> None:
        self.trouble = self.trouble or why


def _is(value: Any, kind: str) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and value.get("type") == kind
