"""What a client got, read apart: from the bytes of a stream or of a whole body, whichever the route. Pure."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(slots=True)
class Answer:
    """What came. ``problems`` are breaches of the dialect, in words."""

    parts: "defaultdict[int, list[str]]" = field(default_factory=lambda: defaultdict(list))
    """The pieces of text of each choice."""
    ids: set[str] = field(default_factory=set)
    finish: dict[int, str] = field(default_factory=dict)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    ended: bool = False
    """The dialect's own end came: ``[DONE]``, ``response.completed``, ``message_stop``, or a whole body."""
    error: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)
    final_text: str | None = None
    """What a responses stream says at its end that the whole text was."""
    number: int = -1
    """The last sequence number of a responses stream."""
    roles: int = 0

    def text(self, choice: int = 0) -> str:
        return "".join(self.parts.get(choice, ()))

    def problem(self, text: str) -> None:
        """Note it, once."""
        if text not in self.problems:
            self.problems.append(text)


def read_stream(route: str, data: bytes) -> Answer:
    """The answer in the server-sent events of ``data``."""
    answer = Answer()
    for block in data.replace(b"\r\n", b"\n").split(b"\n\n"):
        for line in block.split(b"\n"):
            if line.startswith(b"data: "):
                _read_event(route, line[6:], answer)
            elif line and not line.startswith((b":", b"event: ")):
                answer.problem("a line that is no field of an event")
    return answer


def read_whole(route: str, data: bytes) -> Answer:
    """The answer in a body that came in one piece."""
    answer = Answer()
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer.problem("a body that is not JSON")
        return answer
    if not isinstance(value, dict):
        answer.problem("a body that is no object")
    elif value.get("error"):
        answer.error = value["error"]
    else:
        take_body(route, value, answer)
    return answer


def take_body(route: str, value: dict[str, Any], answer: Answer) -> None:
    """Add what a whole answer says."""
    answer.ended = True
    _WHOLE[route](value, answer)


def take_event(route: str, value: dict[str, Any], answer: Answer) -> None:
    """Add what one event says."""
    _EVENTS[route](value, answer)


def _read_event(route: str, data: bytes, answer: Answer) -> None:
    if answer.ended:
        answer.problem("events after the end")
    if data == b"[DONE]":
        answer.ended = True
        return
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer.problem("an event that is not JSON")
        return
    if answer.error is not None:
        answer.problem("events after an error")
    if value.get("error") and (value.get("type", "error") == "error"):
        answer.error = value["error"]
    elif value.get("type") == "error":
        answer.error = value
    else:
        take_event(route, value, answer)


def _chat_event(value: dict[str, Any], answer: Answer) -> None:
    answer.ids.add(value["id"])
    for choice in value["choices"]:
        delta = choice.get("delta", {})
        answer.roles += "role" in delta
        text = delta.get("content") or choice.get("text") or ""
        for call in delta.get("tool_calls") or ():
            text += call["function"].get("arguments") or ""
            if call.get("id"):
                answer.ids.add(value["id"])
        if text:
            answer.parts[choice["index"]].append(text)
            if choice["index"] in answer.finish:
                answer.problem("text after a finish reason")
        if choice.get("finish_reason"):
            if choice["index"] in answer.finish:
                answer.problem("two finish reasons")
            answer.finish[choice["index"]] = choice["finish_reason"]
    _usage(value.get("usage"), answer, "prompt_tokens", "completion_tokens")


def _responses_event(value: dict[str, Any], answer: Answer) -> None:
    kind, number = value["type"], value["sequence_number"]
    if number != answer.number + 1:
        answer.problem("sequence numbers that skip or repeat")
    answer.number = number
    if kind == "response.created":
        answer.roles += 1
    if "response" in value:
        answer.ids.add(value["response"]["id"])
    if kind == "response.output_text.delta":
        answer.parts[0].append(value["delta"])
    elif kind == "response.output_text.done":
        answer.final_text = value["text"]
    elif kind in ("response.completed", "response.incomplete"):
        answer.ended = True
        answer.finish[0] = "stop" if kind == "response.completed" else "length"
        _responses_body(value["response"], answer, text_too=False)
    elif kind == "response.failed":
        answer.error = value["response"].get("error") or {"message": "response.failed"}


def _responses_body(value: dict[str, Any], answer: Answer, text_too: bool = True) -> None:
    text = "".join(part["text"] for item in value["output"] for part in item["content"])
    answer.ids.add(value["id"])
    if text_too:
        answer.parts[0].append(text)
        answer.finish[0] = "stop" if value["status"] == "completed" else "length"
    elif text != answer.text():
        answer.problem("the whole text at the end is not what was streamed")
    _usage(value.get("usage"), answer, "input_tokens", "output_tokens")


def _messages_event(value: dict[str, Any], answer: Answer) -> None:
    kind = value["type"]
    if kind == "message_start":
        answer.roles += 1
        answer.ids.add(value["message"]["id"])
        answer.prompt_tokens = value["message"]["usage"].get("input_tokens")
    elif kind == "content_block_delta":
        answer.parts[value["index"]].append(value["delta"]["text"])
    elif kind == "message_delta":
        answer.finish[0] = _ANTHROPIC_FINISH.get(value["delta"]["stop_reason"], "?")
        answer.completion_tokens = value["usage"].get("output_tokens")
        answer.prompt_tokens = value["usage"].get("input_tokens", answer.prompt_tokens)
    elif kind == "message_stop":
        answer.ended = True


def _chat_body(value: dict[str, Any], answer: Answer) -> None:
    answer.ids.add(value["id"])
    for choice in value["choices"]:
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        answer.parts[choice["index"]].append(text)
        answer.finish[choice["index"]] = choice["finish_reason"]
    _usage(value.get("usage"), answer, "prompt_tokens", "completion_tokens")


def _messages_body(value: dict[str, Any], answer: Answer) -> None:
    answer.ids.add(value["id"])
    answer.parts[0].append("".join(block["text"] for block in value["content"]))
    answer.finish[0] = _ANTHROPIC_FINISH.get(value["stop_reason"], "?")
    _usage(value.get("usage"), answer, "input_tokens", "output_tokens")


def _usage(usage: dict[str, Any] | None, answer: Answer, prompt: str, completion: str) -> None:
    if usage:
        answer.prompt_tokens, answer.completion_tokens = usage[prompt], usage[completion]


_ANTHROPIC_FINISH = {"end_turn": "stop", "max_tokens": "length"}
_EVENTS = {
    "chat": _chat_event,
    "completions": _chat_event,
    "responses": _responses_event,
    "messages": _messages_event,
}
_WHOLE = {
    "chat": _chat_body,
    "completions": _chat_body,
    "responses": _responses_body,
    "messages": _messages_body,
}
