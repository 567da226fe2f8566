"""Answers of Anthropic's messages: blocks with a start and a stop, ``message_delta``, ``message_stop``."""

from dataclasses import dataclass
from typing import Any

from gateway.dispatch.recovery.continued_request import AnswerProgress, AnswerRead, PlacedContent, in_messages
from gateway.dispatch.recovery.events import SpliceFailed, written
from gateway.dispatch.recovery.original_request import OriginalRequest
from gateway.dispatch.recovery.record import MESSAGE_STOP
from gateway.dispatch.recovery.splicing import ContinuationJoiner, ContinuedUsage, Splicer
from shared.process.server_sent_events import ServerSentEvent

_STRANGE = "the engine that went on with the answer sent something else than its events"


@dataclass(slots=True)
class MessagesRead(AnswerRead):
    """What the client has of a message."""

    started: bool = False
    """The text's block was announced."""
    stopped: bool = False
    """The text's block is over."""
    ended: bool = False

    @property
    def begun(self) -> bool:
        return self.started or bool(self.transcript.events)

    def read(self, event: ServerSentEvent) -> None:
        if event.data is None or self.done:
            return
        value = event.value() or {}
        kind = value.get("type")
        if kind == "message_start" and isinstance(value.get("message"), dict):
            self.first = self.first or value["message"]
            if value["message"].get("content"):
                self.rule_out("the answer did not begin at its beginning")
        elif kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            self._read_block(kind, value)
        elif kind == "message_delta":
            self.ended = True
        elif kind == "message_stop":
            self.done = True
        elif kind != "ping":
            self.rule_out("the engine sent something else than the events of an answer")

    def _read_block(self, kind: str, value: dict[str, Any]) -> None:
        if value.get("index") != 0:
            self.rule_out("the answer has more than one block of content")
            return
        if kind == "content_block_stop":
            self.stopped = True
            return
        block = value.get("content_block" if kind == "content_block_start" else "delta")
        wanted = "text" if kind == "content_block_start" else "text_delta"
        text = block.get("text", "") if isinstance(block, dict) and block.get("type") == wanted else None
        if not isinstance(text, str):
            self.rule_out("the answer holds more than text")
            return
        self.started = self.started or kind == "content_block_start"
        self.transcript.add(text)

    def progress(self, original: OriginalRequest, usage_wanted: bool | None) -> "MessagesProgress":
        """Usage is always part of a message, so ``usage_wanted`` says nothing here."""
        return MessagesProgress(original, self)

    def ending(self, tokens: int) -> bytes:
        """The events of an answer that is as long as it may be."""
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        end = (
            _event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": tokens}})
            + MESSAGE_STOP
        )
        return end if self.stopped or not self.started else BLOCK_STOP + end


def _event(value: dict[str, Any]) -> bytes:
    return written(value, value["type"])


BLOCK_STOP = _event({"type": "content_block_stop", "index": 0})


class MessagesProgress(AnswerProgress):
    """How far a message came."""

    def __init__(self, original: OriginalRequest, received: MessagesRead) -> None:
        super().__init__(original, received)
        self._received = received
        self.finished = received.ended or received.done
        self.closing = None
        if self.finished:
            self.closing = b"" if received.done else MESSAGE_STOP
            return
        self._check(received)
        if self._exhausted:
            self.finished = True
            self.closing = received.ending(self.tokens)

    def _place(self, mode: str, text: str) -> PlacedContent:
        return in_messages(self._original, mode, text)

    def splicer(self) -> "MessagesSplicer":
        joiner = self._joiner()
        assert joiner is not None
        return MessagesSplicer(self._received, joiner, self._tally())


class MessagesSplicer(Splicer):
    """Joins a continuation to what the client ``received``."""

    def __init__(self, received: MessagesRead, joiner: ContinuationJoiner, tally: ContinuedUsage) -> None:
        super().__init__(tally)
        self._received = received
        self._joiner = joiner
        self._stopped = received.stopped
        self._text_index: int | None = None
        """The block of the continuation that goes on with the text."""
        self._shift = 0
        """How many more blocks the answer has than the continuation."""

    def _rest(self) -> bytes:
        return b"" if self._stopped else self._text(self._joiner.finish())

    def _event(self, event: ServerSentEvent) -> bytes:
        value = event.value()
        kind = None if value is None else value.get("type")
        if value is None or not isinstance(kind, str) or kind == "error":
            raise SpliceFailed(_STRANGE)
        if kind == "message_start":
            return b"" if self._received.first is not None else _event(value)
        if kind == "message_delta":
            return self._stop() + _event(self._with_usage(value))
        if kind in ("ping", "message_stop"):
            return _event(value)
        if kind not in ("content_block_start", "content_block_delta", "content_block_stop"):
            raise SpliceFailed(_STRANGE)
        return self._block(kind, value) if self._received.begun else _event(value)

    def _block(self, kind: str, value: dict[str, Any]) -> bytes:
        index = value.get("index")
        if not isinstance(index, int):
            raise SpliceFailed(_STRANGE)
        if kind == "content_block_start":
            return self._block_start(index, value)
        if self._text_index is None and not self._shift:
            self._text_index = index  # an engine that announces no blocks
        if index != self._text_index:
            return _event(value | {"index": index + self._shift})
        if kind == "content_block_stop":
            return self._stop()
        delta = value.get("delta")
        if not isinstance(delta, dict) or delta.get("type") != "text_delta":
            raise SpliceFailed("the engine that went on with the answer sent more than text")
        return self._piece(delta.get("text"))

    def _block_start(self, index: int, value: dict[str, Any]) -> bytes:
        block = value.get("content_block")
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and self._text_index is None and not self._shift:
            assert isinstance(block, dict)
            self._text_index = index
            return self._piece(block.get("text", ""))
        if kind != "tool_use":
            raise SpliceFailed("the engine that went on with the answer sent more than text")
        if self._text_index is None:
            self._shift = 1
        return self._stop() + _event(value | {"index": index + self._shift})

    def _piece(self, text: Any) -> bytes:
        if not isinstance(text, str):
            raise SpliceFailed(_STRANGE)
        return self._text(self._joiner.feed(text))

    def _text(self, text: str) -> bytes:
        if not text:
            return b""
        if self._stopped:
            raise SpliceFailed("the engine that went on with the answer had more to say after its end")
        delta = {"type": "text_delta", "text": text}
        return _event({"type": "content_block_delta", "index": 0, "delta": delta})

    def _stop(self) -> bytes:
        """The end of the text's block, unless the client has it."""
        if self._stopped or not self._received.begun:
            return b""
        out = self._text(self._joiner.finish())
        self._stopped = True
        return out + BLOCK_STOP if self._received.started else out

    def _with_usage(self, value: dict[str, Any]) -> dict[str, Any]:
        usage = value.get("usage")
        if not isinstance(usage, dict):
            return value
        first = (self._received.first or {}).get("usage")
        return value | {"usage": self._tally.messages(usage, first if isinstance(first, dict) else {})}
