"""The demo model's tokenizer: byte-level BPE learned from the corpus, and the chat template.

Three properties that the engine's tests rely on: every text survives encoding and decoding, whatever its
bytes; there is no look-ahead in the splitting, so the beginning of an answer, cut between two tokens and
encoded again, gives the same tokens; and nothing is added to a text that nobody wrote.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from deploy.demo_model.corpus import Corpus

SIZE: Final = 1536
END: Final = "<|end|>"
PAD: Final = "<|pad|>"
TEXT: Final = "<|text|>"
SYSTEM: Final = "<|system|>"
USER: Final = "<|user|>"
ASSISTANT: Final = "<|assistant|>"
SPECIAL: Final = (PAD, END, TEXT, SYSTEM, USER, ASSISTANT)

WORDS: Final = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
CONTEXT_TOKENS: Final = 1024

CHAT_TEMPLATE: Final = """\
{%- for message in messages -%}
{%- if message['role'] in ['system', 'developer'] -%}<|system|>
{%- elif message['role'] == 'assistant' -%}<|assistant|>
{%- else -%}<|user|>
{%- endif -%}
{%- if message['content'] is string -%}{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] or [] -%}{{ part['text'] if 'text' in part else '' }}{%- endfor -%}
{%- endif -%}<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""


def build(corpus: Corpus, rng: Random) -> Tokenizer:
    """Learn the merges from the corpus; the same corpus and seed give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=[AddedToken(name, special=True, normalized=False) for name in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(corpus, rng), trainer)
    return tokenizer


def _texts(corpus: Corpus, rng: Random) -> Iterator[str]:
    for entry in corpus.entries:
        yield from (entry.answer, entry.answer, entry.more or "")
        for _ in range(30):
            yield entry.ask(rng)
            yield entry.ask(rng).lower()
    for _ in range(3):
        yield from corpus.prose
    yield from corpus.systems
    yield from (sentence for group in corpus.alike for sentence in group)


def write(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json as transformers and other engines read them."""
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        "bos_token": TEXT,
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")


class Encoder:
    """Texts and messages to token ids, as the chat template renders them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        self.end = self.special(END)
        self.pad = self.special(PAD)

    def special(self, name: str) -> int:
        """The id of a special token."""
        found = self._tokenizer.token_to_id(name)
        assert found is not None
        return int(found)

    def text(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def fixed(self, text: str) -> list[int]:
        """The same for one of the corpus's own texts, which come again and again."""
        if text not in self._known:
            self._known[text] = self.text(text)
        return self._known[text]

    def turn(self, role: str, content: Sequence[int]) -> list[int]:
        """One whole message: the role's mark, `content`, the end mark."""
        return [self.special(role), *content, self.end]

    def prompt(self, messages: Iterable[tuple[str, str]]) -> list[int]:
        """(role mark, text) messages with the mark that asks for the assistant's answer."""
        ids = [token for role, content in messages for token in self.turn(role, self.text(content))]
        return [*ids, self.special(ASSISTANT)]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
