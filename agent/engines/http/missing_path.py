"""Tells an engine that has nothing at a path from one that has no such model or object there. Pure.

Both answer 404. A router's own answer is short and says nothing but that, in the words of its framework;
one about a model or an object says what it is about. So only words known of routers count, and any answer
that says more is taken for the engine's own."""

import re
from typing import Any

import orjson

from shared.protocol.messages import Headers

JUDGED = frozenset((404, 405, 501))
"""405: the path is there for another method. 501: llama.cpp has the path, and was not started for it."""

BODY_BYTES = 4 * 1024
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
        return _kind_of_error(said) == "not_supported_error"
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


def _kind_of_error(said: Any) -> str:
    error = said.get("error") if isinstance(said, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) else ""
