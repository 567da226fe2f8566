"""What requests other than text cost, by their own features, and the part of a request that is its prompt
(SCHEDULING §1).

Features are told in *token equivalents*, units of about the work of reading one token of text. They need
be right only in proportion, within one model: what a unit takes there is learnt like any other model's
speed.
"""

from collections.abc import Mapping
from typing import Any

import orjson

IMAGE_STEPS = 30
IMAGE_SIDE = 1024
"""Of a picture whose request says nothing: what common diffusion models are run with."""

STEP_TOKENS = 4096
"""Of one step on a picture of ``IMAGE_SIDE`` squared: a diffusion transformer sees it as 64 x 64 patches."""

MOST_SIDE, MOST_STEPS, MOST_IMAGES = 16_384, 1000, 128

AUDIO_BYTES_S = 16_000
"""Bytes of a second of speech as it is mostly uploaded: between MP3 at 64 kbit/s and PCM at 32 kB/s."""

SECOND_TOKENS = 50
"""Frames that Whisper's encoder makes of a second."""

SPEECH_CHAR_TOKENS = 4
"""Of speech made of text: audio tokens for each character."""

DOCUMENT_TOKENS = 8
"""Beside each document's text, for the query that is read with it anew."""


def image_tokens(members: Mapping[str, Any]) -> int:
    """Of a request for pictures: their number, pixels and steps."""
    count = _whole(members.get("n"), 1, MOST_IMAGES)
    steps = _whole(members.get("steps", members.get("num_inference_steps")), IMAGE_STEPS, MOST_STEPS)
    width, height = _size(members)
    return round(count * steps * STEP_TOKENS * width * height / IMAGE_SIDE**2)


def audio_tokens(size_bytes: int) -> int:
    """Of a recording of so many bytes, to be written down."""
    return round(max(0, size_bytes) / AUDIO_BYTES_S * SECOND_TOKENS)


def speech_tokens(members: Mapping[str, Any]) -> int:
    """Of a text to be spoken."""
    text = members.get("input")
    return SPEECH_CHAR_TOKENS * len(text) if isinstance(text, str) else 0


def rerank_tokens(members: Mapping[str, Any], text_tokens: int) -> int:
    """Of documents to be ranked, whose request has so many tokens of text: the query is read with each."""
    documents, query = members.get("documents"), members.get("query")
    count = len(documents) if isinstance(documents, list) else 1
    query_tokens = len(query) // 4 if isinstance(query, str) else 0
    return text_tokens + count * (DOCUMENT_TOKENS + query_tokens)


def prompt_bytes(members: Mapping[str, Any]) -> bytes:
    """The prompt of a text request in the order in which engines read it: tools and instructions first, then
    what was said. Empty for a request that has none. Its fingerprints tell which engine has read how much."""
    parts = [members[name] for name in _IN_ORDER if members.get(name) is not None]
    return b"".join(map(orjson.dumps, parts)) if parts else b""


_IN_ORDER = ("tools", "functions", "instructions", "system", "messages", "prompt", "input")


def _size(members: Mapping[str, Any]) -> tuple[int, int]:
    """Width and height in pixels, from ``size`` (``1024x768``) or two members."""
    size = members.get("size")
    sides = size.lower().split("x") if isinstance(size, str) else ()
    if len(sides) == 2 and all(side.isascii() and side.isdigit() and len(side) <= 6 for side in sides):
        return _whole(int(sides[0]), IMAGE_SIDE, MOST_SIDE), _whole(int(sides[1]), IMAGE_SIDE, MOST_SIDE)
    return (
        _whole(members.get("width"), IMAGE_SIDE, MOST_SIDE),
        _whole(members.get("height"), IMAGE_SIDE, MOST_SIDE),
    )


def _whole(value: object, otherwise: int, most: int) -> int:
    """A whole number from 1 to ``most``; ``otherwise`` for anything that is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        return otherwise
    return min(value, most)
