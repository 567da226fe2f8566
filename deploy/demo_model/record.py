"""What train.py writes down beside the model, the figures measured on it, and the check of both.

`answers.json` and `completions.json` hold exact greedy answers; `training.json` says from what and how the
files were made, with their digests and the figures.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import tokenizers
import torch
import transformers
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from deploy.demo_model import corpus as texts
from deploy.demo_model import network
from deploy.demo_model.corpus import Corpus, CorpusEntry, as_sentence
from deploy.demo_model.network import Agreement, answer_all, argmax_agrees, pooled
from deploy.demo_model.samples import REPEAT, TELL_MORE, Typist, plain
from deploy.demo_model.vocabulary import ASSISTANT, CONTEXT_TOKENS, SYSTEM, USER, Encoder

MODEL_FILES: Final = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
RECORD_FILES: Final = ("answers.json", "completions.json")
MARKS: Final = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
SYSTEMS: Final = ("You are a helpful assistant.", "Be brief and answer in French, captain.")
PROMPTS: Final = (
    "Trunkline is",
    "The gateway",
    "An agent is",
    "A slot is",
    "The tunnel",
    "Credit is the number of",
    "When the queue is full,",
    "To start Trunkline,",
    "Q: What is Trunkline?\nA:",
    "Once upon a time",
    "The capital of France is",
)

Messages = list[dict[str, str]]


def write(directory: Path, corpus: Corpus, facts: Mapping[str, Any]) -> list[str]:
    """Write the three files for the model in `directory`/model; returns the figures as lines to print."""
    model, encoder = _load(directory)
    conversations = _conversations(corpus)
    prompts = [_encode(encoder, messages) for messages in conversations]
    answers = answer_all(model, prompts, encoder.end)
    _dump(directory / "answers.json", _rows("messages", conversations, encoder, answers))
    continued = answer_all(model, [encoder.text(prompt) for prompt in PROMPTS], encoder.end)
    _dump(directory / "completions.json", _rows("prompt", PROMPTS, encoder, continued))
    figures = measure(model, encoder, corpus)
    record = {
        **facts,
        "corpus_sha256": texts.digest(),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "processor": platform.machine(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "figures": figures,
        "sha256": {
            **{f"model/{name}": file_digest(directory / "model" / name) for name in MODEL_FILES},
            **{name: file_digest(directory / name) for name in RECORD_FILES},
        },
    }
    _dump(directory / "training.json", record)
    return [f"{name}: {value}" for name, value in figures.items()]


def check(directory: Path) -> list[str]:
    """What is not as recorded, in words; empty if all is well."""
    record = json.loads((directory / "training.json").read_text("utf-8"))
    faults = [
        f"{name} is not the file that was recorded"
        for name, digest in record["sha256"].items()
        if file_digest(directory / name) != digest
    ]
    if texts.digest() != record["corpus_sha256"]:
        faults.append("the corpus has changed since the model was trained")
    model, encoder = _load(directory)
    for row in json.loads((directory / "answers.json").read_text("utf-8")):
        if not _agreement(model, encoder, _encode(encoder, row["messages"]), row["answer"]).exact:
            faults.append(f"another answer than recorded to {row['messages'][-1]['content']!r}")
    for row in json.loads((directory / "completions.json").read_text("utf-8")):
        if not _agreement(model, encoder, encoder.text(row["prompt"]), row["answer"]).exact:
            faults.append(f"another continuation than recorded of {row['prompt']!r}")
    return faults


def _conversations(corpus: Corpus) -> list[Messages]:
    """One question for every entry, follow-ups, conversations of several turns, and system prompts."""
    single: list[Messages] = [[_message("user", entry.canonical)] for entry in corpus.entries]
    follow_ups = [
        [
            _message("user", entry.canonical),
            _message("assistant", entry.answer),
            _message("user", "Tell me more."),
        ]
        for entry in corpus.known
        if entry.more
    ]
    rng = Random(7)
    several: list[Messages] = []
    for count in (2, 2, 2, 3, 3, 4, 5, 6):
        chosen = rng.sample([entry for entry in corpus.known if len(entry.answer) < 500], count)
        turns = [[_message("user", one.canonical), _message("assistant", one.answer)] for one in chosen]
        several.append([message for turn in turns for message in turn][:-1])
    with_system = [
        [_message("system", system), _message("user", entry.canonical)]
        for system in SYSTEMS
        for entry in rng.sample(corpus.known, 8)
    ]
    assert {TELL_MORE, REPEAT} <= {entry.name for entry in corpus.small_talk}
    return single + follow_ups + several + with_system


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _encode(encoder: Encoder, messages: Messages) -> list[int]:
    return encoder.prompt((MARKS[message["role"]], message["content"]) for message in messages)[
        -CONTEXT_TOKENS:
    ]


def _rows(
    key: str, asked: Sequence[Any], encoder: Encoder, answers: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    return [
        {key: one, "answer": encoder.decode(ids), "tokens": len(ids)}
        for one, ids in zip(asked, answers, strict=True)
    ]


def _load(directory: Path) -> tuple[LlamaForCausalLM, Encoder]:
    tokenizer = Tokenizer.from_file(str(directory / "model" / "tokenizer.json"))
    return network.trained(directory / "model"), Encoder(tokenizer)


def _dump(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


DRAWS: Final = 1000
"""Questions drawn for each figure of paraphrases and typing mistakes."""


def measure(model: LlamaForCausalLM, encoder: Encoder, corpus: Corpus) -> dict[str, Any]:
    """Shares of questions answered exactly, by kind of question; see README.md for what each is."""
    rng = Random(99)
    typist = Typist(corpus.openers, corpus.closers)
    named = {entry.name: entry for entry in corpus.entries}
    secret = {plain(question) for _, question in corpus.held_out}

    def drawn(vary: Callable[[str], str]) -> Iterable[tuple[CorpusEntry, str]]:
        for _ in range(DRAWS):
            entry = rng.choice(corpus.entries)
            asked = entry.ask(rng)
            if plain(asked) not in secret:
                yield entry, vary(asked)

    canonical = [(entry, entry.canonical) for entry in corpus.entries]
    held_out = [(named[name], question) for name, question in corpus.held_out]
    lead = min(_answers(model, encoder, entry, asked).margin for entry, asked in canonical)
    return {
        "canonical_questions": len(canonical),
        "canonical_exact": _share(model, encoder, canonical),
        "paraphrases_exact": _share(model, encoder, drawn(as_sentence)),
        "typed_exact": _share(model, encoder, drawn(lambda asked: typist.type(asked, rng))),
        "held_out_questions": len(held_out),
        "held_out_exact": _share(model, encoder, held_out),
        "least_margin_logits": round(lead, 3),
        **_embedding_figures(model, encoder, corpus),
    }


def _agreement(model: LlamaForCausalLM, encoder: Encoder, prompt: Sequence[int], answer: str) -> Agreement:
    return argmax_agrees(model, prompt, [*encoder.text(answer), encoder.end])


def _answers(model: LlamaForCausalLM, encoder: Encoder, entry: CorpusEntry, question: str) -> Agreement:
    return _agreement(model, encoder, encoder.prompt([(USER, question)]), entry.answer)


def _share(model: LlamaForCausalLM, encoder: Encoder, asked: Iterable[tuple[CorpusEntry, str]]) -> float:
    exact = [_answers(model, encoder, entry, question).exact for entry, question in asked]
    return round(1 - exact.count(False) / len(exact), 4)


@torch.no_grad()
def _embedding(model: LlamaForCausalLM, encoder: Encoder, text: str) -> torch.Tensor:
    """[width], unit length: as the engine makes them, from the bare text."""
    ids = torch.tensor([encoder.text(text)])
    return pooled(model, ids, torch.ones_like(ids))[0]


def _embedding_figures(model: LlamaForCausalLM, encoder: Encoder, corpus: Corpus) -> dict[str, float]:
    """Of held-out questions: how often the nearest canonical question is that of the same entry."""
    names = [entry.name for entry in corpus.entries]
    table = torch.stack([_embedding(model, encoder, entry.canonical) for entry in corpus.entries])
    right = 0
    for name, question in corpus.held_out:
        right += names[int((table @ _embedding(model, encoder, question)).argmax())] == name
    return {"held_out_nearest_is_right": round(right / len(corpus.held_out), 4)}
