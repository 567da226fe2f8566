"""What the engine is told to do: the script of one request, and the words it answers with."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any


class Trouble(StrEnum):
    """What is wrong with a whole engine for a while, whatever scripts its requests bring."""

    NONE = ""
    ERROR = "500"
    """New requests are answered 500."""
    MEMORY = "memory"
    """The same, for want of memory."""
    BUSY = "503"
    """New requests are answered 503, and so is ``/health``."""
    HANG = "hang"
    """New requests get no answer until it is over."""
    STALL = "stall"
    """Streams stop, their connections stay; they go on when it is over. New answers hang."""
    CUT = "cut"
    """Streams are cut in the middle, new requests before their head."""
    UNENDED = "unended"
    """Streams end in order for HTTP, but without the end their dialect has; new requests are answered 500."""
    MALFORMED = "malformed"
    """Streams go on with bytes that are no chunk; new answers are not HTTP at all."""
    UNWELL = "unwell"
    """As STALL, and ``/health`` and ``/v1/models`` are answered 503."""
    SILENT = "silent"
    """As STALL, and so is everything else that is asked of it."""
    REFUSE = "refuse"
    """Connections are cut and none is taken."""


class Habit(StrEnum):
    """What some engines do otherwise than most, all the time and to every request."""

    OMITS_END = "omits-end"
    """Streams of chat, completions and messages end with their finish reason and usage and an orderly end
    of the body, without ``[DONE]`` or ``message_stop``: as ``transformers serve`` does."""
    REJECTS_STREAM_OPTIONS = "rejects-stream-options"
    """A request with that member is answered 422, as servers do that forbid unknown members."""
    INTERRUPTS = "interrupts"
    """One request at a time; any other call, ``/v1/models`` too, ends a running stream with ``[DONE]`` and no
    finish reason, and waits for an answer in one piece: as llama-cpp-python does (``interrupt_requests`` in
    llama_cpp/server/app.py). It has neither ``/health`` nor ``/metrics``."""
    CHAT_ONLY = "chat-only"
    """It has no route but chat completions: everything else is answered 404 by its router."""
    LOOKS_INTERRUPT = "looks-interrupt"
    """The same for ``/v1/models`` alone, which ends all streams; requests run beside each other."""


class Fault(StrEnum):
    """How an engine lets its caller down."""

    NONE = ""
    HANG = "hang"
    """Accepts the request and never answers."""
    DIE = "die"
    """Resets the connection: before the head if ``after`` is 0, else after that many tokens."""
    CLOSE = "close"
    """As DIE, but closes in order without finishing the body."""
    STALL = "stall"
    """Stops after ``after`` tokens and keeps the connection open."""
    GARBAGE = "garbage"
    """Answers with bytes that are not HTTP."""
    RUBBISH = "rubbish"
    """Answers 200 with a body that is neither JSON nor server-sent events."""


@dataclass(frozen=True, slots=True)
class Script:
    """One request's behaviour. In a request it is the member ``script`` of the JSON body."""

    tokens: int = 16
    """How long the answer is; the request's own ``max_tokens`` wins."""
    ends_after: int = 0
    """The answer comes to its own end (``stop``) after this many tokens; 0: only its length ends it."""
    tokens_per_s: float = 0.0
    """Pace of a streamed answer; 0 is as fast as the reader takes it."""
    whole_tokens_per_s: float = 0.0
    """Pace at which an answer in one piece is computed before its head; 0 is at once."""
    stepped: bool = False
    """Each token of a streamed answer but the first waits for a ``POST /_step``."""
    pad_bytes: int = 0
    """Each token is padded with dots to at least this many bytes."""
    stamp: bool = False
    """Each chunk also carries ``sent_s``, the monotonic time at which it was written."""
    delay_s: float = 0.0
    """Pause before the head."""
    prefill_tokens_per_s: float = 0.0
    """Pace at which prompts are read before their heads, one after the other, four bytes to a token; 0 is at
    once."""
    status: int = 200
    """Anything else is answered with an error body in OpenAI's shape."""
    retry_after: str | None = None
    """Value of a ``retry-after`` header beside an error status."""
    video_steps: int = 0
    """So many looks until a video is there; 0: it is the answer at once."""
    video_bytes: int = 100_000
    video_error: str = ""
    """With what code a video fails at its end."""
    fault: Fault = Fault.NONE
    after: int = 0
    """How many tokens go out before the fault strikes."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any], base: "Script") -> "Script":
        """``base`` with the members of ``value`` laid over it. Raises TypeError for unknown ones."""
        merged = {field.name: getattr(base, field.name) for field in fields(cls)} | dict(value)
        merged["fault"] = Fault(merged["fault"])
        return cls(**merged)


def tag_of(prompt: str) -> str:
    return f"{zlib.crc32(prompt.encode()) & 0xFFFFFF:06x}"


def token_of(tag: str, index: int, pad_bytes: int = 0) -> str:
    """One token of an answer: it says which it is and of which prompt, so that a loss shows."""
    return f"{index}:{tag} ".ljust(pad_bytes, ".")


def tokens_of(prompt: str, count: int, pad_bytes: int = 0) -> list[str]:
    """The answer to ``prompt``."""
    tag = tag_of(prompt)
    return [token_of(tag, index, pad_bytes) for index in range(count)]


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def messages_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The conversation a request brings, as a list; empty for a bare prompt."""
    for key in ("messages", "input"):
        value = body.get(key)
        if isinstance(value, list) and all(isinstance(message, dict) for message in value):
            return value
    return []


def prompt_of(body: Mapping[str, Any]) -> str:
    """The text a request asks about, whichever route's shape it has."""
    messages = messages_of(body)
    if messages:
        return "\n".join(text_of(message.get("content", "")) for message in messages)
    return str(body.get("prompt", body.get("input", body.get("query", ""))))


def embedding_of(text: str, size: int = 8) -> list[float]:
    """A vector that depends on ``text`` alone."""
    return [((zlib.crc32(f"{index}{text}".encode()) % 2000) - 1000) / 1000 for index in range(size)]
