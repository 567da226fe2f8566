"""What an engine's error response means: the engine is busy, or the path is not there. Pure.

Statuses alone do not tell: engines answer 500 or 503 when memory runs out, 429 or 503 to too many requests
and to one that is too large, 404 for a path and for a model. Only the message tells them apart.

A router's own answer for a path is short and says nothing but that, in the words of its framework; one about
a model or an object says what it is about. So only words known of routers count, and any answer that says
more is taken for the engine's own.
"""

import re
from typing import Any

import orjson

from agent.engines.memory_errors import MESSAGE_BYTES, tells_of_memory
from shared.protocol.messages import Headers, Refusal

REFUSING = frozenset({429, 503})

_ABOUT_THE_REQUEST = (
    b"insufficient_quota",  # OpenAI and what stands before it: the account is empty
    b"exceeded your current quota",
    b"request too large",  # OpenAI: "Request too large for … on tokens per min"
    b"context_length",
    b"context length",
    b"reduce the length",
    b"too many tokens",
)
_ABOUT_THE_ENGINE = (
    b"loading",  # llama.cpp: "Loading model"
    b"not ready",
    b"not well",
    b"unhealthy",
    b"shutting down",
    b"starting",
)
_BUSY = (
    b"too many",  # "Too Many Requests", "too many concurrent requests"
    b"overload",  # TGI and TEI: "Model is overloaded"; Anthropic: "overloaded_error"
    b"busy",  # Ollama: "server busy, please try again. maximum pending requests exceeded"
    b"pending requests",
    b"queue",  # SGLang: "The request queue is full."; Triton: "Exceeds maximum queue size"
    b"concurren",
    b"capacity",
    b"no slot",  # llama.cpp: "no slot available"
    b"slots",
    b"rate limit",
    b"rate_limit",
)


def refusal_of(status: int, text: bytes, others: int) -> Refusal | None:
    """What ``text``, how the body of an answer of ``status`` begins, says of it; None: it does not say.
    ``others`` are the requests of this agent that the engine had besides: with some of them there a 503 that
    gives no other reason is taken for one too many."""
    if status not in REFUSING:
        return None
    text = text[:MESSAGE_BYTES].lower()
    if any(words in text for words in _ABOUT_THE_REQUEST):
        return Refusal.REQUEST
    if tells_of_memory(text):
        return None
    if status == 429 or any(words in text for words in _BUSY):
        return Refusal.BUSY
    if any(words in text for words in _ABOUT_THE_ENGINE):
        return None
    return Refusal.BUSY if others else None


PATH_STATUSES = frozenset((404, 405, 501))
"""405: the path is there for another method. 501: llama.cpp has the path, and was not started for it."""

PATH_BODY_BYTES = 4 * 1024
"""Longest body that is looked at: a router's is below 1 KiB."""

_ROUTERS_WORDS = frozenset(
    (
        "",  # axum (TGI)
        "not found",  # Starlette and FastAPI (vLLM, SGLang, llama-cpp-python), Werkzeug, tornado
        "404 not found",  # nginx
        "404: not found",  # aiohttp (ComfyUI), tornado
        "404 page not found",  # Go's net/http and gin (Ollama)
        "file not found",  # cpp-httplib as llama.cpp uses it
        "page not found",
        "route not found",
        "endpoint not found",
        "path not found",
    )
)
_ROUTERS_BEGINNINGS = ("cannot post ", "invalid url (", "unexpected endpoint or method")
"""Express and Nest; OpenAI's own; LM Studio."""

_HTML_HEADING = re.compile(r"<(title|h1|pre)>([^<]*)</\1>", re.IGNORECASE)
_MESSAGES = ("detail", "message", "error", "msg")


def lacks_path(status: int, headers: Headers, body: bytes, path: str) -> bool:
    """Whether an answer with ``status`` and this whole ``body`` to a POST of ``path`` is one of the engine's
    router: there is nothing at the path, whatever the model."""
    if status == 405:
        return True
    kind = next((value for name, value in headers if name == "content-type"), "").lower()
    text = body.decode(errors="replace").strip()
    said: Any = None
    if "json" in kind or text[:1] == "{":
        try:
            said = orjson.loads(body)
        except orjson.JSONDecodeError:
            return False
    if status == 501:
        error = said.get("error") if isinstance(said, dict) else None
        return isinstance(error, dict) and error.get("type") == "not_supported_error"
    if isinstance(said, dict):
        text = _message(said)
    elif "html" in kind:
        heading = _HTML_HEADING.search(text)
        text = heading[2].strip() if heading is not None else text
    words = text.rstrip(".").lower()
    bare = path.partition("?")[0].lower()
    return (
        words in _ROUTERS_WORDS
        or words.startswith(_ROUTERS_BEGINNINGS)
        or words in (f"file not found: {bare}", f"not found: {bare}", f"no route for {bare}")
    )


def _message(said: dict[str, Any]) -> str:
    """The message in an error of OpenAI's shape or a framework's; the whole of what is none."""
    for name in _MESSAGES:
        value = said.get(name)
        if isinstance(value, dict):
            return _message(value)
        if isinstance(value, str):
            return value
    return "an object without a message"
