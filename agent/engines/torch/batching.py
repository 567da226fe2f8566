"""How much text generation a model's memory allows, and a check on start that batching computes correctly."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from agent.engines.torch import paged_attention
from agent.engines.torch.errors import ModelUnusable
from agent.engines.torch.manager import ResilientManager
from agent.engines.torch.models import LoadedModel
from agent.engines.torch.parsing import Sampling
from agent.engines.torch.sampling import KEYWORD, TextSampling
from agent.engines.torch.weight_layout import arrange

_log = logging.getLogger(__name__)

_PAGE_TOKENS = 32
"""Tokens of one page of the KV cache; prompts share whole pages, so small ones share more."""

_CPU_STEP_TOKENS = 256
_CUDA_STEP_TOKENS = 2048
"""Most tokens of one step. A longer prompt is read in several, between which the others get their tokens."""

_CPU_MEMORY_SHARE = 0.5
_CUDA_MEMORY_SHARE = 0.85
"""Share of the free memory that may be used for KV cache and masks; the rest is for activations and
others."""

_WORKSPACE_SHARE = 0.1
"""Of that, on a CPU, what is for a second copy of the keys and values of texts that run (see `decoding`)."""

_SLACK = 1.25
"""Pages beyond slots × context: the manager takes no new request while less than 15 % of its pages are
free."""

_LEAST_CONTEXT_TOKENS = 64

_PAGED_ATTENTIONS = ("sdpa", "paged|eager")
"""Those that read and write the manager's cache."""

_PROOF_TOKENS = (3, 6)
"""Of two texts: the last of the longer one are computed without the other."""
_PROOF_TIMEOUT_S = 300.0
_PROOF_TOLERANCE = 0.1
"""How far below the best a chosen token's logit may be, as a share of best − mean: far more than rounding
makes, even in 16 bits, and far less than a wrong attention makes."""


def start(model: LoadedModel) -> tuple[LoadedModel, ResilientManager]:
    """A running manager, and the model with the context that its memory allows.

    Raises :class:`ModelUnusable` when memory does not do for a context worth the name, or when the model's
    architecture does not work with continuous batching, and MemoryError when memory ran out in trying it.
    """
    budget = _budget(model)
    if model.device.type == "cpu":
        arrange(model.network)
    expected = _expect(model)
    paged_attention.install()
    manager, unusable = _started(model, budget, expected)
    if manager is None and budget.workspace_tokens:
        # An architecture whose attention wants more than what is prepared for steps of one token each.
        _log.warning("steps of one token each take the longer way: %s", unusable)
        manager, unusable = _started(model, budget._replace(workspace_tokens=0), expected)
    if manager is None:
        assert unusable is not None
        raise unusable
    return replace(model, context_tokens=budget.context_tokens), manager


def _started(
    model: LoadedModel, budget: "_Budget", expected: "Sequence[_Expected]"
) -> tuple[ResilientManager | None, ModelUnusable | None]:
    """A manager that computes what is expected, or why there is none. Else raises as :func:`start`."""
    pages = -(-budget.cache_tokens // _PAGE_TOKENS)
    try:
        manager = ResilientManager(
            model.network,
            GenerationConfig(  # type: ignore[no-untyped-call]
                do_sample=False, eos_token_id=sorted(model.eos_ids) or -1
            ),
            ContinuousBatchingConfig(
                page_size=_PAGE_TOKENS,
                num_blocks=pages,
                max_batch_tokens=budget.step_tokens,
                max_requests_per_batch=budget.step_tokens,
                use_cuda_graph=False,  # per-request sampling happens in Python (see `sampling`)
                use_async_batching=False,
                auto_switch_to_flash=False,  # it would fetch kernels over the network
            ),
        )
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelUnusable(f"continuous batching does not take this architecture: {error}") from error
    if (attention := model.network.config._attn_implementation) not in _PAGED_ATTENTIONS:
        raise ModelUnusable(f"continuous batching does not take this architecture's attention ({attention})")
    manager.kv_tokens = pages * _PAGE_TOKENS
    manager.workspace_tokens = budget.workspace_tokens
    manager.start()
    try:
        _prove(manager, expected)
    except ModelUnusable as error:
        manager.halt(timeout_s=1.0)
        return None, error.with_traceback(None)  # its frames hold the manager, and so the cache
    except BaseException:
        manager.halt(timeout_s=1.0)
        raise
    return manager, None


class _Budget(NamedTuple):
    """What memory allows, in tokens."""

    context_tokens: int
    cache_tokens: int
    step_tokens: int
    workspace_tokens: int
    """See `decoding`; 0: there is none."""


def _budget(model: LoadedModel) -> _Budget:
    step_tokens = _CUDA_STEP_TOKENS if model.device.type == "cuda" else _CPU_STEP_TOKENS
    step_tokens = max(step_tokens, model.slots)
    wanted = int(model.slots * model.context_tokens * _SLACK) + _PAGE_TOKENS * model.slots
    room_bytes = _room_bytes(model)
    workspace_bytes = int(room_bytes * _WORKSPACE_SHARE) if model.device.type == "cpu" else 0
    tokens = min(wanted, (room_bytes - workspace_bytes) // _token_bytes(model, step_tokens))
    context = min(model.context_tokens, int(tokens / _SLACK))
    if context < min(_LEAST_CONTEXT_TOKENS, model.context_tokens):
        raise ModelUnusable(f"there is memory for a context of {context} tokens only")
    if context < model.context_tokens:
        _log.warning("context cut from %d to %d tokens for want of memory", model.context_tokens, context)
    workspace_tokens = workspace_bytes // (model.network.dtype.itemsize * _kept_numbers(model))
    return _Budget(context, tokens, step_tokens, workspace_tokens)


def _room_bytes(model: LoadedModel) -> int:
    """For the cache: what is free, and of what was granted what the weights leave."""
    free_bytes = _free_bytes(model.device)
    if model.memory_bytes is None:
        return free_bytes
    weights = {tensor.data_ptr(): tensor.nbytes for tensor in model.network.parameters()}
    return max(0, min(free_bytes, model.memory_bytes - int(sum(weights.values()))))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _CUDA_MEMORY_SHARE)
    return int(min(psutil.virtual_memory().available, _cgroup_free_bytes()) * _CPU_MEMORY_SHARE)


def _cgroup_free_bytes(directory: Path = Path("/sys/fs/cgroup")) -> float:
    """What a container's limit leaves; infinite without one."""
    try:
        return int((directory / "memory.max").read_text()) - int((directory / "memory.current").read_text())
    except (OSError, ValueError):  # no cgroups of version 2 here, or "max"
        return math.inf


def _token_bytes(model: LoadedModel, step_tokens: int) -> int:
    """What one token of cache costs: its keys and values in every layer, their copy at the attention of one
    layer, and its column in the attention masks of a step."""
    config = model.network.config.get_text_config()
    heads, _, width = _attention_sizes(model)
    masks = 2 if getattr(config, "sliding_window", None) else 1
    numbers = _kept_numbers(model) + 3 * heads * width + masks * step_tokens
    return int(model.network.dtype.itemsize * numbers + 16)


def _kept_numbers(model: LoadedModel) -> int:
    """Of the keys and values of one token in every layer."""
    _, kv_heads, width = _attention_sizes(model)
    return int(2 * model.network.config.get_text_config().num_hidden_layers * kv_heads * width)


def _attention_sizes(model: LoadedModel) -> tuple[int, int, int]:
    """Heads, heads of keys and values, and the width of each."""
    config = model.network.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        raise ModelUnusable("continuous batching does not take an architecture without attention")
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, getattr(config, "num_key_value_heads", None) or heads, width


class _Expected(NamedTuple):
    """A short text by the model's plain forward pass, without any cache."""

    prompt: list[int]
    tokens: list[int]
    logits: torch.Tensor
    """What each of the tokens was chosen from; shape (tokens, vocabulary)."""


@torch.inference_mode()
def _expect(model: LoadedModel) -> list[_Expected]:
    """Two texts, the prompt of one longer than a page of the cache."""
    longest = max(2, min(_PAGE_TOKENS + 7, model.context_tokens - max(_PROOF_TOKENS) - 1))
    expected = []
    for length, count in zip((longest, longest - longest // 4), _PROOF_TOKENS, strict=True):
        prompt = [(13 * index + 7) % model.vocabulary for index in range(length)]
        tokens: list[int] = []
        rows = []
        for _ in range(count):
            ids = torch.tensor([prompt + tokens], device=model.device)
            rows.append(model.network(input_ids=ids, use_cache=False).logits[0, -1].float())
            tokens.append(int(rows[-1].argmax()))
        expected.append(_Expected(prompt, tokens, torch.stack(rows)))
    return expected


def _prove(manager: ResilientManager, expected: Sequence[_Expected]) -> None:
    """Generate the same texts together, with the manager.

    An architecture that does not pass the paged cache through to its attention would not fail but generate
    wrong text. This detects it, and warms the model up.
    """
    settings: dict[str, Any] = {KEYWORD: TextSampling(Sampling())}
    wanted = {
        manager.add_request(text.prompt, max_new_tokens=len(text.tokens), eos_token_id=[-1], **settings): text
        for text in expected
    }
    while wanted:
        result = manager.get_result(timeout=_PROOF_TIMEOUT_S)
        if result is None or result.error is not None:
            reason = manager.background_thread_status.fatal_error if result is None else result.error
            if manager.out_of_memory:
                raise MemoryError(reason)  # there may be more another time
            raise ModelUnusable(f"continuous batching fails with this model: {reason or 'no answer in time'}")
        if not _agrees(wanted.pop(result.request_id), result.generated_tokens):
            raise ModelUnusable("continuous batching computes something else than the model itself does")


def _agrees(expected: _Expected, tokens: list[int]) -> bool:
    """Whether ``tokens`` are the expected ones up to a choice that rounding may turn."""
    for token, likeliest, logits in zip(tokens, expected.tokens, expected.logits, strict=True):
        if token != likeliest:
            best = float(logits.max())
            return best - float(logits[token]) <= _PROOF_TOLERANCE * (best - float(logits.mean()))
    return True
