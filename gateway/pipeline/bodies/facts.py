"""All that the gateway must know of a JSON body. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from gateway.domain.errors import BadRequest
from gateway.domain.fingerprints import BLOCK_BYTES, fingerprints
from gateway.domain.json_members import (
    OPTIONS,
    Place,
    count_candidates,
    names_model_once,
    nested_too_deep,
    only_model,
    option_places,
    text_places,
    value_starts,
)
from shared.protocol import limits

ANSWER_BYTES = 512 * 1024
"""Longest answer of a child, which is parsed on the event loop: that takes a millisecond or two."""

OUT_OF_MEMORY = 12
"""How a child ends that got no memory: ENOMEM. A parser in C that gets none may end it by a signal, too."""

SHORT_BYTES = 4 * limits.KIB
"""A body within this is read on the event loop, whatever is in it: that takes less than a millisecond."""

SHORT_US = 2500
"""A body that takes so long at the most, by what is counted in it, is read on the event loop too."""

BYTES_PER_US = 64
"""What every stage together takes for a body: it is parsed, its prompt is written and digested."""

MARKS_US = ((b"[", 0.2), (b"{", 0.2), (b",", 0.035), (b"\\", 0.02))
"""What each of them takes besides, where there are most."""

NAME_US = 0.35
"""What a member takes besides: it is put in order too."""

CANDIDATE_US = 5.0
"""What a name takes that may be one of those whose places are looked for."""

_UNCOUNTED = bytes(set(range(256)) - set(b'[{,\\:"'))

JSON_VALUES = 2_000_000
"""Values of any body. At some 60 bytes each the parsed form stays near 120 MB; a prompt of a million token
numbers has half as many."""

MOST_MEMBERS = 1000
"""At the top of a long body. What clients send has some thirty."""

TEXT_CHARS = 512
"""Kept of a string in a long body."""

EXCERPT_VALUES = 20_000
"""Beside the prompt of a long body. Schemas and biases have some hundreds."""

DEPTH = 4
"""So many levels of a long body are kept."""

_PROMPT = (
    *("tools", "system", "instructions"),  # chat templates put them before everything else
    *("template", "context", "messages", "prompt", "input", "inputs", "query", "documents", "queries"),
    *("text_1", "text_2", "data_1", "data_2", "suffix", "content", "items"),
)
"""Members that engines read as the prompt, in the order in which they read them."""

_PROMPTS = frozenset(_PROMPT)

_NO_MEMORY = "Not enough memory"
"""How orjson begins to say so; it has no error of its own for it."""


class JsonFacts(Struct, frozen=True, gc=False):
    """What a body says. Places are offsets in its bytes.

    ``members``: those at its top; of a long body without what is long in them. ``start`` is behind the
    opening brace. ``options`` and ``models`` are where the values of ``stream_options`` and ``model`` at the
    top stand, of the latter those that read as the one that counts; None: there is one, and nobody has
    looked. ``named``: how often ``model`` is named there.
    """

    members: Mapping[str, Any]
    prompt_bytes: int = 0
    prefix: Sequence[int] = ()
    prompts: int = 1
    start: int = 1
    options: Sequence[Place] = ()
    models: Sequence[Place] | None = ()
    named: int = 0


def is_short(pieces: Sequence[bytes]) -> bool:
    """Whether a body may be read on the event loop. Nothing is read for that, only counted."""
    size_bytes = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
    left_us = SHORT_US - size_bytes / BYTES_PER_US
    if size_bytes <= SHORT_BYTES or left_us <= 0:
        return left_us > 0
    marks = b"".join(piece.translate(None, _UNCOUNTED) for piece in pieces)
    left_us -= sum(marks.count(mark) * mark_us for mark, mark_us in MARKS_US)
    # Of what stands in strings, code for one, every quote is escaped. No name begins with such a quote.
    names = min(marks.count(b":"), marks.count(b'"') - marks.count(b'\\"'))
    left_us -= names * NAME_US
    if names * CANDIDATE_US < left_us:
        return True
    return sum(map(count_candidates, pieces)) * CANDIDATE_US < left_us


def read_json(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises :class:`BadRequest` with the position of the first fault, and
    MemoryError."""
    if not body:
        raise BadRequest("The request has no body; send a JSON object.", code="invalid_json")
    if len(body) > JSON_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > JSON_VALUES:
        raise BadRequest(f"The JSON body has more than {JSON_VALUES} values.", code="invalid_json")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith(_NO_MEMORY):
            raise MemoryError from None
        message = f"The request body is not valid JSON: {_fault(error, body)}."
        raise BadRequest(message, code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest("The request body must be a JSON object.", code="invalid_json")
    return value


def read_facts(body: bytes, long: bool = False) -> JsonFacts:
    """The facts of a body; ``long``: an excerpt of its members, for another process. Raises BadRequest."""
    members = read_json(body)
    if long and len(members) > MOST_MEMBERS:
        raise BadRequest(
            f"The JSON body has more than {MOST_MEMBERS} members at its top.", code="invalid_json"
        )
    prompt = prompt_of(members)
    prompt_bytes = len(prompt)
    models: Sequence[Place] | None = ()
    named, kept = 0, members
    if "model" in members:
        models, named = (None, 1) if names_model_once(body) else _models(body, members["model"])
    if long:
        if models is None:
            only = only_model(body)
            models = () if only is None else (only,)
        kept = _Excerpt().members(members)
        if kept.get(OPTIONS) != members.get(OPTIONS):  # it is written anew from what is kept
            raise BadRequest(f"{OPTIONS!r} has more in it than anybody means.", param=OPTIONS)
    return JsonFacts(
        kept,
        prompt_bytes,
        fingerprints(prompt) if prompt_bytes >= BLOCK_BYTES else (),
        _prompts(members["prompt"]) if "prompt" in members else 1,
        1 if body[0] == _BRACE else body.index(b"{") + 1,
        option_places(body) if OPTIONS in members else (),
        models,
        named,
    )


_BRACE = ord("{")


def _models(body: bytes, model: object) -> tuple[Sequence[Place], int]:
    """Where the members ``model`` stand that read as ``model``, the one that counts, and how many there
    are."""
    starts = value_starts(body, "model")
    return (text_places(body, starts, model) if isinstance(model, str) else ()), len(starts)


def prompt_of(members: Mapping[str, Any]) -> bytes:
    """Bytes that are equal for two requests exactly as far as what their engines read is; empty for none.

    Members that are no part of the prompt (the temperature, who asks) do not count, nor does the order of
    members. Raises BadRequest for one that is nested deeper than it can be written (254 levels).
    """
    names = _PROMPTS.intersection(members)
    if len(names) > 1:
        return b"\n".join([prompt_of({each: members[each]}) for each in _PROMPT if members.get(each)])
    for only in names:
        if members[only]:
            try:
                return orjson.dumps(members[only])
            except orjson.JSONEncodeError:
                raise nested_too_deep(only) from None
    return b""


def _prompts(prompt: object) -> int:
    """How many prompts a completion has: an array of numbers is one of tokens."""
    if not isinstance(prompt, list) or len(prompt) < 2 or isinstance(prompt[0], int):
        return 1
    return len(prompt)


class _Excerpt:
    """Copies what may decide about a request, which is short and near the top: no long text, no text of an
    array (a prompt is one), nothing deep. Raises BadRequest for more than anybody means."""

    def __init__(self) -> None:
        self._left = EXCERPT_VALUES

    def value(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0:
            message = f"The JSON body has more than {EXCERPT_VALUES} values beside its prompt."
            raise BadRequest(message, code="invalid_json")
        if isinstance(value, str):
            return value[:TEXT_CHARS]
        if isinstance(value, dict):
            items = list(value.items())[:MOST_MEMBERS] if depth < DEPTH else ()
            return {name[:TEXT_CHARS]: self.value(each, depth + 1) for name, each in items}
        if isinstance(value, list):
            few = value[: MOST_MEMBERS + 1] if depth < DEPTH else ()
            self._left -= len(few)
            return [self.value(each, depth + 1) if isinstance(each, dict) else None for each in few]
        return value

    def members(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Of a body. What is its prompt is left empty where it is long."""
        kept: dict[str, Any] = {}
        for name, value in members.items():
            hidden = name in _PROMPT and isinstance(value, dict | list)
            kept[name[:TEXT_CHARS]] = type(value)() if hidden else self.value(value, 1)
        return kept


def _fault(error: orjson.JSONDecodeError, body: bytes) -> str:
    """What is wrong and where, never what is there."""
    try:
        body.decode()
    except UnicodeDecodeError as undecodable:
        return f"byte {undecodable.start} is not UTF-8"
    return f"{error.msg} at line {error.lineno}, column {error.colno} (character {error.pos})"
