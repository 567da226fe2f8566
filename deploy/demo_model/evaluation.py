"""How well the demo model does, in figures."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final

import torch
from transformers import LlamaForCausalLM

from deploy.demo_model.corpus import Corpus, Entry, as_sentence
from deploy.demo_model.greedy import argmax_agrees
from deploy.demo_model.network import pooled
from deploy.demo_model.samples import plain
from deploy.demo_model.variation import Typist
from deploy.demo_model.vocabulary import USER, Encoder

DRAWS: Final = 1000
DECLINES: Final = "foreign-"


def measure(model: LlamaForCausalLM, encoder: Encoder, corpus: Corpus) -> dict[str, Any]:
    """Shares of questions answered exactly, by kind of question; see README.md for what each is."""
    rng = Random(99)
    typist = Typist(corpus.openers, corpus.closers)
    named = {entry.name: entry for entry in corpus.entries}
    secret = {plain(question) for _, question in corpus.held_out}

    def drawn(vary: Callable[[str], str]) -> Iterable[tuple[Entry, str]]:
        for _ in range(DRAWS):
            entry = rng.choice(corpus.entries)
            asked = entry.ask(rng)
            if plain(asked) not in secret:
                yield entry, vary(asked)

    canonical = [(entry, entry.canonical) for entry in corpus.entries]
    held_out = [(named[name], question) for name, question in corpus.held_out]
    lead = min(_agreement(model, encoder, entry, asked) for entry, asked in canonical)
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


def _agreement(model: LlamaForCausalLM, encoder: Encoder, entry: Entry, question: str) -> float:
    return argmax_agrees(
        model, encoder.prompt([(USER, question)]), [*encoder.text(entry.answer), encoder.end]
    ).margin


def missed(
    model: LlamaForCausalLM, encoder: Encoder, asked: Iterable[tuple[Entry, str]]
) -> list[tuple[str, str]]:
    """(entry name, question) of every question whose greedy answer is not the entry's."""
    return [
        (entry.name, question)
        for entry, question in asked
        if not argmax_agrees(
            model, encoder.prompt([(USER, question)]), [*encoder.text(entry.answer), encoder.end]
        ).exact
    ]


def _share(model: LlamaForCausalLM, encoder: Encoder, asked: Iterable[tuple[Entry, str]]) -> float:
    questions = list(asked)
    return round(1 - len(missed(model, encoder, questions)) / len(questions), 4)


@torch.no_grad()
def embedding(model: LlamaForCausalLM, encoder: Encoder, text: str) -> torch.Tensor:
    """[width], unit length: as the engine makes them, from the bare text."""
    ids = torch.tensor([encoder.text(text)])
    return pooled(model, ids, torch.ones_like(ids))[0]


def _embedding_figures(model: LlamaForCausalLM, encoder: Encoder, corpus: Corpus) -> dict[str, float]:
    """Of held-out questions: how often the nearest canonical question is that of the same entry."""
    names = [entry.name for entry in corpus.entries]
    table = torch.stack([embedding(model, encoder, entry.canonical) for entry in corpus.entries])
    right = 0
    for name, question in corpus.held_out:
        right += names[int((table @ embedding(model, encoder, question)).argmax())] == name
    return {"held_out_nearest_is_right": round(right / len(corpus.held_out), 4)}
