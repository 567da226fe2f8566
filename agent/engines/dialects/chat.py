"""Chat completions as engines write them: answers in one piece, chunks and errors. Pure."""

from collections.abc import Iterator
from typing import Any

from agent.engines.dialects.dialect import (
    ChatAnswer,
    ChatUsage,
    EventWriter,
    JsonObject,
    ToolCallPiece,
    text_member,
)
from shared.process.server_sent_events import ServerSentEvent, ServerSentEventReader

_REASONING = ("reasoning_content", "reasoning")
"""What engines call the text of a model's thoughts: vLLM, SGLang, llama.cpp; Ollama and newer vLLM."""


class NoChatAnswer(Exception):
    """What the engine sent is no chat completion."""


def usage_of(value: Any) -> ChatUsage:
    """What a ``usage`` member says."""
    if not isinstance(value, dict):
        return ChatUsage()
    return ChatUsage(
        _count(value, "prompt_tokens"),
        _count(value, "completion_tokens"),
        _count(value.get("prompt_tokens_details"), "cached_tokens"),
        _count(value.get("completion_tokens_details"), "reasoning_tokens"),
    )


def answer_of(value: Any) -> ChatAnswer:
    """A chat completion in one piece. Raises :class:`NoChatAnswer`."""
    choice = _choice(value)
    message = None if choice is None else choice.get("message")
    if choice is None or not isinstance(message, dict):
        raise NoChatAnswer("the engine's answer is no chat completion")
    calls = [
        piece
        for place, call in enumerate(_objects(message.get("tool_calls")))
        for piece in [_call(call, place)]
    ]
    text = text_member(message, "content") or text_member(message, "refusal")
    finish = text_member(choice, "finish_reason") or "stop"
    usage = usage_of(value.get("usage"))
    return ChatAnswer(text, _reasoning(message), calls, finish, _stop_string(choice), usage)


def error_of(value: Any, status: int) -> JsonObject:
    """OpenAI's error object in the body of an error, which may be of another shape."""
    said = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(said, str):
        said = {"message": said}
    if not isinstance(said, dict):
        said = {}
    detail = said.get("detail")
    message = text_member(said, "message") or (detail if isinstance(detail, str) else "")
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {
        "message": message or f"The engine answered with status {status}.",
        "type": text_member(said, "type") or kind,
        "param": said.get("param"),
        "code": said.get("code"),
    }


class ChatChunkReader:
    """Reads the chunks of one streamed chat completion, and has ``writer`` write the same."""

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._events = ServerSentEventReader()
        self._calls: list[tuple[int, str]] = []
        """The engine's number and id of each call, in order."""
        self._begun = False
        self._finish: str | None = None
        self._stop: str | None = None
        self._usage: ChatUsage | None = None
        self._over = False

    def feed(self, data: bytes) -> bytes:
        """What follows from more of the stream. Raises :class:`NoChatAnswer` and
        :class:`shared.process.server_sent_events.EventTooLong`."""
        return b"".join([self._read(event) for event in self._events.feed(data)])

    def finish(self) -> bytes:
        """The stream is over. One that had no finish reason gets no end: it broke off."""
        rest = b"".join([self._read(event) for event in self._events.finish()])
        return rest + self._end()

    def _read(self, event: ServerSentEvent) -> bytes:
        if self._over:
            return b""
        if event.data is None:
            return b": \n\n"  # it shows that the engine is at work
        if event.is_done:
            return self._end()
        value = event.value()
        if value is None:
            raise NoChatAnswer("the engine sent something else than the chunks of a chat completion")
        if value.get("error"):
            self._over = True
            return self._begin() + self._writer.fail(500, error_of(value, 500))
        if isinstance(value.get("usage"), dict):
            self._usage = usage_of(value["usage"])
        choice = _choice(value)
        return b"" if choice is None else self._begin() + self._read_choice(choice)

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return self._writer.begin()

    def _read_choice(self, choice: JsonObject) -> bytes:
        delta = choice.get("delta")
        out = b""
        if isinstance(delta, dict):
            if thought := _reasoning(delta):
                out += self._writer.reasoning(thought)
            if text := text_member(delta, "content") or text_member(delta, "refusal"):
                out += self._writer.text(text)
            for call in _objects(delta.get("tool_calls")):
                out += self._writer.call(self._numbered(call))
        if finish := text_member(choice, "finish_reason"):
            self._finish, self._stop = finish, _stop_string(choice)
        return out

    def _numbered(self, call: JsonObject) -> ToolCallPiece:
        """The piece under the number of its call. Some engines give every call the number 0 and an id of its
        own."""
        piece = _call(call, 0)
        known = [place for place, (number, _) in enumerate(self._calls) if number == piece.index]
        if known and (not piece.id or not piece.name or self._calls[known[-1]][1] == piece.id):
            place = known[-1]
        else:
            self._calls.append((piece.index, piece.id))
            place = len(self._calls) - 1
        return ToolCallPiece(place, piece.id, piece.name, piece.arguments)

    def _end(self) -> bytes:
        if self._over or self._finish is None:
            return b""
        self._over = True
        return self._begin() + self._writer.end(self._finish, self._stop, self._usage or ChatUsage())


def _choice(value: Any) -> JsonObject | None:
    """The first choice."""
    choices = value.get("choices") if isinstance(value, dict) else None
    return next(_objects(choices), None)


def _objects(value: Any) -> Iterator[JsonObject]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _reasoning(value: JsonObject) -> str:
    return next((text for name in _REASONING if (text := text_member(value, name))), "")


def _stop_string(choice: JsonObject) -> str | None:
    """vLLM and SGLang name the stop string that ended an answer; a number is a token's."""
    for name in ("stop_reason", "matched_stop"):
        if isinstance(choice.get(name), str):
            return str(choice[name])
    return None


def _call(call: JsonObject, place: int) -> ToolCallPiece:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    index = call.get("index")
    return ToolCallPiece(
        index if isinstance(index, int) else place,
        text_member(call, "id"),
        text_member(function, "name"),
        text_member(function, "arguments"),
    )


def _count(value: Any, name: str) -> int:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0
