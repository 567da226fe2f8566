"""A made-up model behind made-up engines: it says a fixed text, however far it has been said already.

Everything is worked out from the request's body, so an engine that gets a wrong request gives a wrong answer.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

PROMPT_TOKENS = 7


@dataclass(frozen=True)
class Model:
    """``tokens`` are what it says when nothing stops it."""

    tokens: tuple[str, ...]

    def rest(self, said: str) -> list[str]:
        """The tokens after ``said``, which must be a front part of its text, cut anywhere."""
        text = "".join(self.tokens)
        assert text.startswith(said), f"asked to go on after {said[-40:]!r}"
        left, size = [], 0
        for token in self.tokens:
            if size >= len(said):
                left.append(token)
            elif size + len(token) > len(said):
                left.append(token[len(said) - size :])
            size += len(token)
        return left

    def tokens_in(self, said: str) -> int:
        size = count = 0
        for token in self.tokens:
            if size >= len(said):
                break
            size += len(token)
            count += 1
        return count


@dataclass(frozen=True)
class Style:
    """How an engine writes."""

    id: str = "one"
    model: str = "m"
    created: int = 1
    crlf: bool = False
    named: bool = False
    role_with_text: bool = False
    usage_in_last: bool = False
    running_usage: bool = False
    tells_continued: bool = False
    echoes: bool = False
    extra: Mapping[str, Any] | None = None
    batch: int = 1
    """Tokens in one event."""

    def event(self, value: Mapping[str, Any]) -> bytes:
        line_end = b"\r\n" if self.crlf else b"\n"
        named = b"event: " + str(value.get("type")).encode() + line_end if "type" in value else b""
        return named + b"data: " + orjson.dumps(value) + 2 * line_end

    @property
    def done(self) -> bytes:
        return b"data: [DONE]\r\n\r\n" if self.crlf else b"data: [DONE]\n\n"


def limit(body: Mapping[str, Any]) -> int:
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    return min((body[name] for name in names if body.get(name) is not None), default=10**9)


def grouped(tokens: Sequence[str], size: int) -> Iterator[tuple[str, int]]:
    """Text and number of tokens of every event."""
    for start in range(0, len(tokens), size):
        part = tokens[start : start + size]
        yield "".join(part), len(part)


@dataclass(frozen=True)
class Answer:
    said: str
    """What it was sent of the answer."""
    tokens: list[str]
    whole: bool
    """It ended by itself."""
    prompt_tokens: int
    continued: int


def answer(model: Model, body: Mapping[str, Any], said: str, *, counts: bool = False) -> Answer:
    left = model.rest(said)
    continued = model.tokens_in(said)
    most = limit(body)
    if "continued_max_tokens" in body and counts:
        most = body["continued_max_tokens"] - continued
    return Answer(said, left[:most], len(left) < most, PROMPT_TOKENS + continued, continued)


def said_in_chat(body: Mapping[str, Any]) -> str:
    last = body["messages"][-1]
    if last["role"] != "assistant":
        assert not body.get("continue_final_message")
        return ""
    content = last["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def chat(model: Model, body: Mapping[str, Any], style: Style) -> bytes:
    return b"".join(chat_events(model, body, style))


def chat_events(model: Model, body: Mapping[str, Any], style: Style) -> Iterator[bytes]:
    yield from _chunks(
        answer(model, body, said_in_chat(body), counts=style.tells_continued), body, style, chat=True
    )


def completions(model: Model, body: Mapping[str, Any], style: Style) -> bytes:
    return b"".join(completion_events(model, body, style))


def completion_events(model: Model, body: Mapping[str, Any], style: Style) -> Iterator[bytes]:
    prompt = body["prompt"] if isinstance(body["prompt"], str) else body["prompt"][0]
    said = prompt.removeprefix("PROMPT:")
    yield from _chunks(answer(model, body, said), body, style, chat=False)


def _chunks(given: Answer, body: Mapping[str, Any], style: Style, *, chat: bool) -> Iterator[bytes]:
    wanted = bool((body.get("stream_options") or {}).get("include_usage"))

    def base() -> dict[str, Any]:
        kind = "chat.completion.chunk" if chat else "text_completion"
        known = {"id": style.id, "object": kind, "created": style.created, "model": style.model}
        return known | dict(style.extra or {})

    def usage(count: int) -> dict[str, Any]:
        prompt = given.prompt_tokens
        numbers: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": count}
        numbers["total_tokens"] = prompt + count
        if style.tells_continued:
            numbers["prompt_tokens_details"] = {"continued_tokens": given.continued}
        return numbers

    def choice(text: str | None, reason: str | None, role: bool = False) -> dict[str, Any]:
        content: dict[str, Any] = {} if text is None else {"content": text}
        start = {"role": "assistant"} if role else {}
        delta = {"delta": start | content} if chat else {"text": text or ""}
        return {"choices": [{"index": 0, **delta, "logprobs": None, "finish_reason": reason}]}

    if chat and not style.role_with_text:
        yield style.event(base() | choice("", None, role=True))
    if style.echoes and given.said:
        yield style.event(base() | choice(given.said, None, role=style.role_with_text))
    count = 0
    for text, size in grouped(given.tokens, style.batch):
        count += size
        more = {"usage": usage(count)} if style.running_usage and wanted else {}
        yield style.event(
            base() | choice(text, None, role=chat and style.role_with_text and count == size) | more
        )
    count += given.whole  # the token that ends it
    last = base() | choice(None, "stop" if given.whole else "length")
    yield style.event(last | {"usage": usage(count)} if style.usage_in_last and wanted else last)
    if wanted and not style.usage_in_last:
        yield style.event(base() | {"choices": [], "usage": usage(count)})
    yield style.done


Engine = Callable[[Model, Mapping[str, Any], Style], bytes]


def messages(model: Model, body: Mapping[str, Any], style: Style) -> bytes:
    return b"".join(message_events(model, body, style))


def message_events(model: Model, body: Mapping[str, Any], style: Style) -> Iterator[bytes]:
    """As Anthropic writes them; an answer without text has no block, as vLLM has it."""
    said = said_in_chat(body)
    assert said == said.rstrip(), "messages: final assistant content cannot end with trailing whitespace"
    given = answer(model, body, said)
    start = {"id": style.id, "type": "message", "role": "assistant", "model": style.model, "content": []}
    usage = {"input_tokens": given.prompt_tokens, "output_tokens": 1}
    none: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
    yield style.event({"type": "message_start", "message": start | none | {"usage": usage}})
    yield style.event({"type": "ping"})
    pieces = ([(said, 0)] if style.echoes and said else []) + list(grouped(given.tokens, style.batch))
    if pieces:
        yield style.event(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        )
    for text, _ in pieces:
        delta = {"type": "text_delta", "text": text}
        yield style.event({"type": "content_block_delta", "index": 0, "delta": delta})
    if pieces:
        yield style.event({"type": "content_block_stop", "index": 0})
    ended = {"stop_reason": "end_turn" if given.whole else "max_tokens"}
    told = {"output_tokens": len(given.tokens)}
    if style.usage_in_last:
        told["input_tokens"] = given.prompt_tokens
    yield style.event({"type": "message_delta", "delta": none | ended, "usage": told})
    yield style.event({"type": "message_stop"})


def responses(model: Model, body: Mapping[str, Any], style: Style) -> bytes:
    return b"".join(response_events(model, body, style))


def _said_in_input(body: Mapping[str, Any]) -> str:
    last = body["input"][-1] if isinstance(body["input"], list) else {}
    if last.get("role") != "assistant":
        return ""
    assert last["status"] == "incomplete"
    return "".join(part["text"] for part in last["content"])


def response_events(model: Model, body: Mapping[str, Any], style: Style) -> Iterator[bytes]:
    """As OpenAI writes them; an answer without text has no item, as vLLM has it."""
    given = answer(model, body, _said_in_input(body))
    numbers = itertools.count()
    text = (given.said if style.echoes else "") + "".join(given.tokens)
    item_id = f"msg_{style.id}"
    place: dict[str, Any] = {"item_id": item_id, "output_index": 0, "content_index": 0}

    def event(kind: str, **more: Any) -> bytes:
        return style.event({"type": kind, "sequence_number": next(numbers), **more})

    def response(status: str, output: list[Any]) -> dict[str, Any]:
        settings = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {}}
        settings |= {"max_output_tokens": body.get("max_output_tokens"), "error": None}
        told = {"id": style.id, "object": "response", "created_at": style.created, "model": style.model}
        why = {"incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None}
        return {**told, **settings, **why, "status": status, "output": output, "usage": None}

    def item(status: str, content: list[Any]) -> dict[str, Any]:
        return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    yield event("response.created", response=response("in_progress", []))
    yield event("response.in_progress", response=response("in_progress", []))
    output = []
    if text:
        yield event("response.output_item.added", output_index=0, item=item("in_progress", []))
        yield event("response.content_part.added", **place, part=part(""))
        if style.echoes:
            yield event("response.output_text.delta", **place, delta=given.said, logprobs=[])
        for piece, _ in grouped(given.tokens, style.batch):
            yield event("response.output_text.delta", **place, delta=piece, logprobs=[])
        yield event("response.output_text.done", **place, text=text, logprobs=[])
        yield event("response.content_part.done", **place, part=part(text))
        output = [item("completed" if given.whole else "incomplete", [part(text)])]
        yield event("response.output_item.done", output_index=0, item=output[0])
    status = "completed" if given.whole else "incomplete"
    details = {"continued_tokens": given.continued} if style.tells_continued else {}
    usage = {
        "input_tokens": given.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0, **details},
        "output_tokens": len(given.tokens),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given.prompt_tokens + len(given.tokens),
    }
    yield event(f"response.{status}", response=response(status, output) | {"usage": usage})
