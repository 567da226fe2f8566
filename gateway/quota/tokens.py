"""How many tokens a request lets its answer have, as any engine might read its body, and what can be told of
requests and answers that are passed on unread. Pure.

Engines read other names beside OpenAI's, and some read several: which of them its engine goes by is the
engine's affair, so the largest counts. What is zero or less means "no limit" to some engine (llama.cpp's
``n_predict: -1``), so it counts as none. And a limit limits only where it stands under a name that whoever
serves that path reads: Ollama's ``/api/chat`` knows no ``max_tokens``, vLLM no ``n_predict``.
"""

import codecs
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson
from msgspec import Struct

from shared.protocol.limits import KIB

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""OpenAI's and Anthropic's, which have to be integers."""

_LIMITS = frozenset(LIMITS).union(
    ("n_predict",),  # llama.cpp
    ("max_new_tokens",),  # TGI, SGLang, transformers
    ("num_predict",),  # Ollama
    ("max_length", "max_tokens_to_sample", "max_gen_len"),  # KoboldCpp, Anthropic's former API, Llama's
)
_LEAST = frozenset(("min_tokens", "min_new_tokens", "min_length"))
"""What the answer has at least."""
_CHOICES = frozenset(("n", "best_of", "n_cmpl", "num_return_sequences"))
_ENDLESS = frozenset(("ignore_eos", "ignore_eos_token"))
"""True: the model cannot end its answer."""
_NESTED = frozenset(("options", "parameters", "sampling_params", "generation_config"))
"""Objects in which Ollama, TGI, SGLang and transformers have such members."""
_OTHERS = frozenset(("model", "messages", "prompt", "input", "stream", "stream_options")).union(
    ("temperature", "top_p", "seed", "stop", "tools", "tool_choice", "response_format", "user", "metadata")
)
"""Members that most bodies have and that hold no limit."""
_USUAL = _OTHERS.union(LIMITS)
_PROMPTS = ("prompt", "text", "inputs", "input_ids", "messages")

_CHAT = frozenset(("max_tokens", "max_completion_tokens"))
_OLLAMA = frozenset(("options.num_predict",))
_NATIVE = frozenset(("parameters.max_new_tokens", "sampling_params.max_new_tokens"))
_BINDING: Mapping[str, frozenset[str]] = {
    "chat/completions": _CHAT,
    "completions": frozenset(("max_tokens",)),
    "responses": frozenset(("max_output_tokens",)),
    "messages": frozenset(("max_tokens",)),
    "api/generate": _OLLAMA,
    "api/chat": _OLLAMA,
    "v1/chat": frozenset(("max_output_tokens",)),  # LM Studio's
    "completion": frozenset(("n_predict",)),  # llama.cpp's
    "infill": frozenset(("n_predict",)),
    "generate": _NATIVE,  # TGI's and SGLang's
    "generate_stream": _NATIVE,
}
"""Ends of paths → the names, written so, under which whoever serves them surely reads a limit."""
_NONE = frozenset[str]()

MEMBERS = 1000
"""Of a body so many members are looked at, those of its objects of options together with its own. One with
more is taken to ask for as much as there is."""

MOST_TOKENS = 10**7
MOST_CHOICES = 100_000
"""Above what any engine takes (vLLM's bound is 16,384)."""


class TokenDemand(Struct, frozen=True, gc=False):
    """``most_tokens`` is for all choices together; None: the request does not say. ``choices`` is how many
    answers it makes its engine write. ``endless``: without a limit each is as long as there is room."""

    most_tokens: int | None = None
    choices: int = 1
    endless: bool = False


_SAYS_NOTHING = TokenDemand()


def demand_of_json(members: Mapping[str, Any], path: str, prompts: int = 1) -> TokenDemand:
    """What a body asks for at ``path`` that has so many prompts, each of which is answered."""
    binding = _binding(path)
    if len(members) < MEMBERS and _USUAL.issuperset(members):
        found, count = "", 0
        for name in LIMITS:
            if name in members:
                found, count = name, count + 1
        if not count:
            return TokenDemand(None, prompts) if prompts > 1 else _SAYS_NOTHING
        limit = members[found]
        if count == 1 and type(limit) is int and 0 < limit < MOST_TOKENS and found in binding:
            # one limit that is surely read, as in nearly every body
            return TokenDemand(limit * prompts, prompts) if prompts > 1 else TokenDemand(limit)
    read = _Reading(binding)
    read.body(members)
    choices = 1 if read.choices < 1 else MOST_CHOICES if read.choices > MOST_CHOICES else read.choices
    if prompts > 1:
        choices *= prompts
    if not read.bound or read.unlimited:
        return TokenDemand(None, choices, read.endless or read.least > 0)
    most = read.most if read.most > read.least else read.least
    return TokenDemand((most if most < MOST_TOKENS else MOST_TOKENS) * choices, choices)


@lru_cache(maxsize=256)
def _binding(path: str) -> frozenset[str]:
    segments = path.partition("?")[0].strip("/").split("/")
    last_two = "/".join(segments[-2:])
    return _BINDING.get(last_two) or _BINDING.get(segments[-1], _NONE)


class _Reading:
    """What was found in a body."""

    def __init__(self, binding: frozenset[str]) -> None:
        self.most = self.least = 0
        self.choices = 1
        self.endless = False
        self.bound = False
        """There is a limit that its engine surely reads."""
        self.unlimited = False
        """There is one that some engine takes for none, or reads from elsewhere."""
        self._binding = binding
        self._left = MEMBERS

    def body(self, members: Mapping[str, Any]) -> None:
        if not self._looks_at(members):
            return
        for name, value in members.items():
            if name in _OTHERS:
                continue
            lower = name.lower()
            if lower in _COUNTED or lower in _ENDLESS:
                self.bound |= self._member(name, lower, value, "")
            elif lower in _NESTED:
                self.unlimited |= lower != name
                self._sets(lower, value)

    def _sets(self, outer: str, value: Any) -> None:
        """An object of options, or a list with one for each prompt, of which each must be bound."""
        sets = value if isinstance(value, list) else [value]
        bound = 0
        for each in sets[:MEMBERS]:
            if not isinstance(each, dict):
                continue
            if not self._looks_at(each):
                return
            found = [self._member(name, name.lower(), item, f"{outer}.") for name, item in each.items()]
            bound += any(found)
        self.bound |= 0 < bound == len(sets)

    def _looks_at(self, members: Mapping[str, Any]) -> bool:
        """Whether there is room for one more object; the body is taken to ask for all there is otherwise."""
        self._left -= 1 + len(members)
        if self._left >= 0:
            return True
        self.endless = self.unlimited = True
        return False

    def _member(self, name: str, lower: str, value: Any, outer: str) -> bool:
        """Whether it is a limit that is surely read."""
        if lower in _ENDLESS:
            self.endless |= value is True
            return False
        number: int | None = None
        if lower in _COUNTED:
            number = value if type(value) is int and 0 < value <= MOST_TOKENS else _number(value)
        if number is None:
            if lower in _LIMITS and value is not None:
                self.unlimited = True
            return False
        if lower in _CHOICES:
            self.choices = number if number > self.choices else self.choices
        elif lower in _LEAST:
            self.least = number if number > self.least else self.least
        else:
            self.most = number if number > self.most else self.most
            self.unlimited |= number <= 0 or name != lower
            return f"{outer}{name}" in self._binding
        return False


def prompts_of(members: Mapping[str, Any]) -> int:
    """How many prompts an engine may find in a body of its own kind: the members of a list of texts, of
    lists of tokens or of conversations."""
    found = 1
    for name in _PROMPTS:
        value = members.get(name)
        if isinstance(value, list) and value and isinstance(value[0], str | list):
            found = max(found, len(value))
    return found


def _number(value: Any) -> int | None:
    """As generous readers of JSON take it (pydantic, nlohmann)."""
    if isinstance(value, str) and len(value) <= 32:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return math.ceil(max(-1, min(value, MOST_TOKENS)))


_COUNTED = _LIMITS | _LEAST | _CHOICES


JSON_BYTES = 64 * KIB
"""How much of a body that is passed on unread is searched for what it asks for."""

SAMPLE_BYTES = 64 * KIB

BYTES_PER_TOKEN = 4
"""Bytes of JSON text per token, roughly."""

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


def demand_of_unread(method: str, path: str, body: bytes, *, whole: bool) -> TokenDemand:
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
    return demand_of_json(members, path, prompts_of(members)) if isinstance(members, dict) else TokenDemand()


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
