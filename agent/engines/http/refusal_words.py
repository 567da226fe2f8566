"""What an engine means by 429 or 503: too many requests at once, or this request. Pure.

The statuses are used for both, and only the message tells them apart.
"""

from agent.engines.memory_words import MESSAGE_BYTES, tells_of_memory
from shared.protocol.messages import Refusal

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
