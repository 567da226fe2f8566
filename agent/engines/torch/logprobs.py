"""Log probabilities of tokens, and the shapes in which OpenAI's answers have them. Pure.

They are those of the model itself: penalties, bias, temperature and what limits the choice do not count.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenLogprob(NamedTuple):
    """A token that was chosen, and the likeliest ones with theirs, best first. ``offset``: where its text
    begins in the answer, in characters. ``logprob`` is None for the first token of a prompt, which follows
    nothing."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
    offset: int = 0


class TokenTexts:
    """The text of single tokens, whose bytes may be a part of a character only."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bytes = lru_cache(4096)(self._bytes_of)
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        self._alphabet = _byte_alphabet() if "ByteLevel" in repr(decoder) else {}

    def text(self, token: int) -> str:
        return self._bytes(token).decode(errors="replace")

    def bytes_of(self, token: int) -> bytes:
        return self._bytes(token)

    def _bytes_of(self, token: int) -> bytes:
        piece = self._tokenizer.convert_ids_to_tokens(token) or ""
        if (byte := _BYTE_TOKEN.fullmatch(piece)) is not None:
            return bytes([int(byte[1], 16)])
        if piece not in self._tokenizer.all_special_tokens:
            if self._alphabet and all(character in self._alphabet for character in piece):
                return bytes(self._alphabet[character] for character in piece)
            piece = piece.replace("\u2581", " ")  # SentencePiece's space
        return str(piece).encode()


def chat_logprobs(entries: Iterable[TokenLogprob], texts: TokenTexts) -> dict[str, Any]:
    """The ``logprobs`` of a choice of chat."""

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        data = texts.bytes_of(token)
        return {"token": texts.text(token), "logprob": logprob, "bytes": list(data)}

    return {
        "content": [
            one(entry.token, entry.logprob) | {"top_logprobs": [one(*other) for other in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


def completion_logprobs(entries: Sequence[TokenLogprob], texts: TokenTexts) -> dict[str, Any]:
    """The ``logprobs`` of a choice of a completion. The token itself is always among the top ones."""
    return {
        "tokens": [texts.text(entry.token) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            None
            if entry.logprob is None
            else {texts.text(token): logprob for token, logprob in (*entry.top, (entry.token, entry.logprob))}
            for entry in entries
        ],
        "text_offset": [entry.offset for entry in entries],
    }


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes (GPT-2's ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}
