"""The log probabilities of a prompt's own tokens, by the model's plain forward pass."""

from collections.abc import Sequence

import torch

from agent.engines.torch.logprobs import TokenLogprob
from agent.engines.torch.models import LoadedModel
from agent.engines.torch.sampling import top_logprobs

_STEP_LOGITS = 32 * 1024 * 1024
"""Logits of one step. A long prompt is read in several, as its logits may take gigabytes."""


@torch.inference_mode()
def prompt_logprobs(model: LoadedModel, ids: Sequence[int], most: int) -> list[TokenLogprob]:
    """An entry for each token of the prompt, with ``most`` alternatives; the first has none, and no value."""
    step = max(1, _STEP_LOGITS // model.vocabulary)
    found = [TokenLogprob(ids[0], None)]
    past = None
    for start in range(0, len(ids) - 1, step):
        tokens = torch.tensor([ids[start : start + step]], device=model.device)
        out = model.network(input_ids=tokens, past_key_values=past, use_cache=True)
        past = out.past_key_values
        follow = torch.tensor(ids[start + 1 : start + 1 + step], device=model.device).unsqueeze(-1)
        logprobs = torch.log_softmax(out.logits[0, : len(follow)].float(), dim=-1)
        found += top_logprobs(logprobs, follow, most)
    return found
