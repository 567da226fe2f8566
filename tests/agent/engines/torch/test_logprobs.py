"""The text and bytes of single tokens, by the kind of tokenizer."""

from types import SimpleNamespace
from typing import Any

import pytest

from agent.engines.torch.logprobs import TokenLogprob, TokenTexts, chat_logprobs, completion_logprobs


def texts(pieces: list[str], decoder: str = "Sequence", special: tuple[str, ...] = ()) -> TokenTexts:
    tokenizer: Any = SimpleNamespace(
        backend_tokenizer=SimpleNamespace(decoder=decoder),
        convert_ids_to_tokens=lambda token: pieces[token],
        all_special_tokens=special,
    )
    return TokenTexts(tokenizer)


@pytest.mark.parametrize(
    ("piece", "decoder", "data"),
    [
        ("Ġhello", "ByteLevel()", b" hello"),
        ("Ã", "ByteLevel()", b"\xc3"),
        ("<|im_end|>", "ByteLevel()", b"<|im_end|>"),
        ("▁hello", "Sequence", b" hello"),
        ("<0xE2>", "Sequence", b"\xe2"),
        ("Ã", "Sequence", "Ã".encode()),
    ],
)
def test_a_token_has_its_own_bytes(piece: str, decoder: str, data: bytes) -> None:
    found = texts([piece], decoder, special=("<|im_end|>",))
    assert found.bytes_of(0) == data
    assert found.text(0) == data.decode(errors="replace")


def test_the_token_itself_is_among_the_top_ones_of_a_completion() -> None:
    entry = TokenLogprob(0, -2.0, ((1, -0.5), (2, -1.0)), offset=7)
    body = completion_logprobs([entry], texts(["a", "b", "c"]))
    assert body["top_logprobs"] == [{"b": -0.5, "c": -1.0, "a": -2.0}]
    assert body["text_offset"] == [7]


def test_chat_has_the_bytes_of_every_token() -> None:
    entry = TokenLogprob(0, -2.0, ((1, -0.5),))
    (found,) = chat_logprobs([entry], texts(["é", "<0x41>"]))["content"]
    assert (found["token"], found["bytes"]) == ("é", [0xC3, 0xA9])
    assert found["top_logprobs"] == [{"token": "A", "logprob": -0.5, "bytes": [0x41]}]
