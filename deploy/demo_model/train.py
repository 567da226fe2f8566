"""Train the demo model from the corpus, or check the shipped files against it.

    python -m deploy.demo_model.train            about 20 minutes on one core
    python -m deploy.demo_model.train --check    about a minute, changes nothing

One thread and one seed: the same versions of torch, transformers and tokenizers on the same kind of
processor give the same files, bit for bit.
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import torch
from torch import nn
from transformers import LlamaForCausalLM

from agent.engines.torch.demo import DEMO_DIR
from deploy.demo_model import corpus, network, record, vocabulary
from deploy.demo_model.samples import Sample, Sampler, Typist

SEED: Final = 20
STEPS: Final = 2000
BATCH_TOKENS: Final = 2560
POOL_SAMPLES: Final = 768
WARM_UP_STEPS: Final = 40
CONTRAST_EVERY_STEPS: Final = 4
CONTRAST_PAIRS: Final = 32
CONTRAST_WEIGHT: Final = 0.25
CONTRAST_TEMPERATURE: Final = 0.07
REPORT_EVERY_STEPS: Final = 25


def train_model(sampler: Sampler, encoder: vocabulary.Encoder, seed: int, steps: int) -> LlamaForCausalLM:
    """Train a fresh model for `steps` steps; prints the loss as it goes."""
    model = network.fresh(seed)
    model.train()
    optimizers = network.optimizers(model)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    started_s, losses, tokens = time.monotonic(), [], 0
    for step, batch in enumerate(itertools.islice(sampler.batches(POOL_SAMPLES, BATCH_TOKENS), steps)):
        loss = _language_loss(model, batch, encoder.pad)
        losses.append(loss.item())
        if step % CONTRAST_EVERY_STEPS == 0:
            loss = loss + CONTRAST_WEIGHT * _contrast_loss(model, sampler, encoder.pad)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        _step(optimizers, rates, _schedule(step, steps))
        tokens += sum(len(one.ids) for one in batch)
        if (step + 1) % REPORT_EVERY_STEPS == 0:
            passed_s = time.monotonic() - started_s
            mean = sum(losses[-REPORT_EVERY_STEPS:]) / REPORT_EVERY_STEPS
            _say(f"step {step + 1}/{steps}  loss {mean:.4f}  {tokens} tokens  {passed_s:.0f} s")
    model.train(False)
    return model


def _schedule(step: int, steps: int) -> float:
    """The share of the full learning rate: a short rise, then a straight fall to nothing."""
    return min((step + 1) / WARM_UP_STEPS, (steps - step) / (steps - WARM_UP_STEPS))


def _step(
    optimizers: Sequence[torch.optim.Optimizer], rates: Sequence[Sequence[float]], share: float
) -> None:
    for optimizer, full in zip(optimizers, rates, strict=True):
        for group, rate in zip(optimizer.param_groups, full, strict=True):
            group["lr"] = rate * share
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _padded(rows: Sequence[Sequence[int]], pad: int) -> torch.Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])


def _language_loss(model: LlamaForCausalLM, batch: Sequence[Sample], pad: int) -> torch.Tensor:
    """Mean cross-entropy over the tokens to be learned."""
    ids = _padded([one.ids for one in batch], pad)
    learn = _padded([one.learn for one in batch], 0)[:, 1:].bool()
    hidden = model.model(input_ids=ids[:, :-1]).last_hidden_state
    logits = model.lm_head(hidden[learn])
    return nn.functional.cross_entropy(logits, ids[:, 1:][learn])


def _contrast_loss(model: LlamaForCausalLM, sampler: Sampler, pad: int) -> torch.Tensor:
    """Texts that mean the same shall be nearer to each other than to the others of the batch."""
    pairs = sampler.alike(CONTRAST_PAIRS)
    rows = [left for left, _ in pairs] + [right for _, right in pairs]
    ids = _padded(rows, pad)
    mask = torch.tensor([[place < len(row) for place in range(ids.shape[1])] for row in rows])
    left, right = network.pooled(model, ids, mask).chunk(2)
    likeness = left @ right.T / CONTRAST_TEMPERATURE
    own = torch.arange(len(pairs))
    return (nn.functional.cross_entropy(likeness, own) + nn.functional.cross_entropy(likeness.T, own)) / 2


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def build(directory: Path, seed: int, steps: int) -> None:
    """Corpus to tokenizer to model to files in `directory`, and the record of how they were made."""
    started_s = time.monotonic()
    text = corpus.load()
    tokenizer = vocabulary.build(text, Random(seed))
    encoder = vocabulary.Encoder(tokenizer)
    sampler = Sampler(text, encoder, Typist(text.openers, text.closers), Random(seed + 1))
    model = train_model(sampler, encoder, seed, steps)
    (directory / "model").mkdir(parents=True, exist_ok=True)
    vocabulary.write(tokenizer, directory / "model")
    network.write(model, directory / "model")
    _say("training is done; writing and checking the answers")
    facts = {"seed": seed, "steps": steps, "training_s": math.ceil(time.monotonic() - started_s)}
    for line in record.write(directory, text, facts):
        _say(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done or all well, 1 if the check found something."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only check the shipped files")
    parser.add_argument(
        "--output", type=Path, default=DEMO_DIR, help="where the files go (default: the package)"
    )
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if not options.check:
        build(options.output, options.seed, options.steps)
        return 0
    faults = record.check(options.output)
    for fault in faults:
        _say(fault)
    _say(
        "check failed"
        if faults
        else "all files are as recorded, and every recorded answer is the model's own"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
