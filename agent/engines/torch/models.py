"""From a local Hugging Face directory to a model ready to compute. Nothing here ever touches a network."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from agent.engines.torch.errors import ModelUnusable, is_out_of_memory
from agent.engines.torch.startup import CPU_SLOTS, CUDA_SLOTS, EngineOptions

_log = logging.getLogger(__name__)

_LOCAL = {"local_files_only": True, "trust_remote_code": False}
"""No download, and no code out of a model's directory."""

_CONTEXT_UNSAID = 2048
"""Context of a decoder whose configuration states none."""

_UNLIMITED = 1_000_000_000
"""A tokenizer's ``model_max_length`` above this is its way to say that it knows none."""

_EMBEDDING_SUFFIXES = ("Model", "ForMaskedLM", "ForPreTraining")
_TRANSCRIBING = ("WhisperForConditionalGeneration",)
_CLASSIFIER_SUFFIX = "ForSequenceClassification"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """One model. ``generates`` False: it has no language head, and gives embeddings or, if it has ``labels``,
    their probabilities."""

    name: str
    directory: Path
    network: Any
    tokenizer: Any
    device: torch.device
    generates: bool
    context_tokens: int
    slots: int
    vocabulary: int
    eos_ids: frozenset[int]
    labels: tuple[str, ...] = ()
    """The classes of a classifier; one of pairs of texts has one."""
    processor: Any = None
    """Makes what a model that transcribes reads of a recording; None for all others."""
    memory_bytes: int | None = None
    """What weights and KV cache may take together; None: what is free."""

    @property
    def has_template(self) -> bool:
        return self.generates and bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def encoder(self) -> Any:
        """The part of the network that gives hidden states."""
        network = self.network
        return getattr(network, network.base_model_prefix, network) if self.generates else network


def load(options: EngineOptions) -> LoadedModel:
    """Load weights and tokenizer. Raises :class:`ModelUnusable` with a reason fit for a person to read."""
    if not (options.model / "config.json").is_file():
        raise ModelUnusable(f"{options.model} is no Hugging Face model directory: it has no config.json")
    device = choose_device(options.device)
    try:
        config = AutoConfig.from_pretrained(options.model, **_LOCAL)
        generates = _generates(config)
        labels = () if generates else _labels(config)
        network: Any = _kind(config, generates, labels).from_pretrained(
            options.model, dtype=choose_dtype(options.dtype, device), **_LOCAL
        )
        processor = _processor(options.model) if _hears(config) else None
        tokenizer = AutoTokenizer.from_pretrained(options.model, **_LOCAL)
    except ModelUnusable:
        raise
    except Exception as error:  # whatever transformers and the formats below it make of a bad directory
        if is_out_of_memory(error):
            raise
        raise ModelUnusable(f"{options.model} cannot be loaded: {error}") from error
    context = _context_tokens(config, tokenizer, generates)
    slots = CUDA_SLOTS if device.type == "cuda" else CPU_SLOTS
    slots = 1 if processor is not None else slots  # recordings are computed one after the other
    return LoadedModel(
        name=options.name,
        directory=options.model,
        network=network.to(device).eval().requires_grad_(False),
        tokenizer=tokenizer,
        device=device,
        generates=generates,
        context_tokens=min(context, options.max_context or context),
        slots=options.slots or slots,
        vocabulary=network.get_input_embeddings().num_embeddings,
        eos_ids=_eos_ids(network, tokenizer),
        labels=labels,
        processor=processor,
        memory_bytes=options.memory_bytes,
    )


def choose_device(wanted: str) -> torch.device:
    if wanted.startswith("cuda"):
        index, seen = int(wanted.partition(":")[2] or 0), torch.cuda.device_count()
        if index >= seen:
            count = {0: "no CUDA device", 1: "only one CUDA device"}.get(seen, f"only {seen} CUDA devices")
            raise ModelUnusable(f"device {wanted} was asked for, but torch sees {count}")
    name = ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def choose_dtype(wanted: str, device: torch.device) -> Any:
    """On a CPU float32, for speed and exactness; on a GPU what the weights are stored in."""
    if wanted == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return getattr(torch, wanted)


def _generates(config: Any) -> bool:
    architecture = (getattr(config, "architectures", None) or ["none"])[0]
    if _hears(config):
        return False
    if getattr(config, "is_encoder_decoder", False):
        raise ModelUnusable(f"{architecture} is an encoder-decoder, which this engine does not serve")
    if architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return True
    if architecture.endswith((*_EMBEDDING_SUFFIXES, _CLASSIFIER_SUFFIX)) and getattr(
        config, "vocab_size", None
    ):
        return False
    raise ModelUnusable(
        f"its architecture {architecture} is for something else than texts, embeddings and classes"
    )


def _hears(config: Any) -> bool:
    return (getattr(config, "architectures", None) or [""])[0] in _TRANSCRIBING


def _processor(directory: Path) -> Any:
    return AutoProcessor.from_pretrained(directory, **_LOCAL)  # type: ignore[no-untyped-call]


def _kind(config: Any, generates: bool, labels: Sequence[str]) -> Any:
    if _hears(config):
        return AutoModelForSpeechSeq2Seq
    if labels:
        return AutoModelForSequenceClassification
    return AutoModelForCausalLM if generates else AutoModel


def _labels(config: Any) -> tuple[str, ...]:
    if not config.architectures[0].endswith(_CLASSIFIER_SUFFIX):
        return ()
    return tuple(str(config.id2label[index]) for index in range(config.num_labels))


def _context_tokens(config: Any, tokenizer: Any, generates: bool) -> int:
    text = config.get_text_config()
    stated = getattr(text, "max_position_embeddings", None)
    stated = stated or getattr(text, "max_target_positions", None) or _CONTEXT_UNSAID
    if generates:
        return int(stated)
    if "roberta" in config.model_type:  # its positions begin after the padding id
        stated -= text.pad_token_id + 1
    limit = getattr(tokenizer, "model_max_length", _UNLIMITED)
    return int(min(stated, limit) if limit < _UNLIMITED else stated)


def _eos_ids(network: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that one of the model's files calls the end; chat models tend to have two."""
    generation = getattr(network, "generation_config", None)
    ids: set[int] = set()
    for source in (generation, network.config.get_text_config(), tokenizer):
        item = getattr(source, "eos_token_id", None)
        ids.update(item if isinstance(item, Iterable) else () if item is None else (item,))
    return frozenset(ids)
