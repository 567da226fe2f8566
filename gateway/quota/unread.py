"""How many tokens a request may take whose body is passed on as it is, as far as that can be told. Pure."""

import codecs

import orjson

from gateway.quota.asked import TokenDemand, asked_of, prompts_of
from shared.protocol.limits import KIB

JSON_BYTES = 64 * KIB
"""Of bodies that are passed on unread so much is looked at for what they ask for."""

SAMPLE_BYTES = 64 * KIB

BYTES_PER_TOKEN = 4
"""Of text in JSON, roughly."""

NOT_GENERATING = frozenset[str]().union(
    ("tokenize", "detokenize", "apply-template", "input_tokens", "count_tokens", "tokenizer_info"),
    ("embed", "embed_all", "embed_sparse", "embedding", "embeddings", "encode", "similarity"),
    ("rerank", "reranking", "score", "classify", "pooling", "show"),
)
"""Last segments of engines' paths whose answers are no text that was written."""

EVENTS = ("text/event-stream", "application/x-ndjson", "application/jsonl", "application/stream+json")
"""Types of answers that come piece by piece."""

_FETCHING = ("GET", "HEAD", "OPTIONS", "DELETE")

MEDIA = ("image/", "audio/", "video/", "font/", "model/", "application/zip", "application/pdf")


def asked_unread(method: str, path: str, body: bytes, *, whole: bool) -> TokenDemand:
    """What a request at ``path`` of an engine asks for whose body begins so; JSON is read whatever it is
    called. One that says nothing asks for nothing to be written."""
    place, _, query = path.partition("?")
    says = body or (query and method not in _FETCHING)
    if not says or place.rstrip("/").rpartition("/")[2].lower() in NOT_GENERATING:
        return TokenDemand(0)
    if not whole or len(body) > JSON_BYTES:
        return TokenDemand()
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError:
        return TokenDemand()
    return asked_of(members, path, prompts_of(members)) if isinstance(members, dict) else TokenDemand()


def tokens_unread(body: bytes, size_bytes: int | None) -> int:
    """Tokens of a body of ``size_bytes`` (None: not known) that begins so: of text, unless it can be none."""
    sample = body[:SAMPLE_BYTES]
    if not sample or b"\0" in sample:
        return 0
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return 0
    return max(len(body), size_bytes or 0) // BYTES_PER_TOKEN


def tokens_seen(content_type: str, pieces: int, size_bytes: int) -> int:
    """Tokens of an answer that came in so many pieces: one for each of a stream of events, and by its bytes
    of any other text; none of what is no text."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in EVENTS:
        return pieces
    return 0 if kind.startswith(MEDIA) else size_bytes // BYTES_PER_TOKEN
