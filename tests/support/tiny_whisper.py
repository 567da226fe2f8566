"""``python -m tests.support.tiny_whisper DIR``: a model of Whisper's kind of some 100 kB, from a seed.

It hears noise in everything, deterministically, in English or German.
"""

import sys
from pathlib import Path
from typing import Any

from tests.support.tiny_model import save

_END = "<|endoftext|>"
_CONTROL = (
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
_TIME_STAMPS = 1501


def make(directory: Path, seed: int = 1) -> None:
    """Write config, weights, a byte-level tokenizer and what makes features of recordings."""
    import torch
    import transformers
    from tokenizers import pre_tokenizers

    library: Any = transformers  # of which types cover a part

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {token: index for index, token in enumerate((*letters, _END, *_CONTROL))}
    how: dict[str, Any] = {"vocab": ids, "merges": [], "additional_special_tokens": list(_CONTROL)}
    ends: dict[str, Any] = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"), ids[_END])
    start: dict[str, Any] = {"decoder_start_token_id": ids["<|startoftranscript|>"]}
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")
    }
    sizes |= {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_target_positions": 64}
    config = library.WhisperConfig(vocab_size=len(ids) + _TIME_STAMPS, init_std=0.5, **sizes, **ends, **start)
    network: Any = library.WhisperForConditionalGeneration(config)
    network.generation_config = library.GenerationConfig(
        is_multilingual=True,
        lang_to_id={name: ids[name] for name in ("<|en|>", "<|de|>")},
        task_to_id={name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        max_initial_timestamp_index=50,
        max_length=40,
        return_timestamps=False,
        **ends,
        **start,
    )
    save(network, directory)
    library.WhisperProcessor(
        library.WhisperFeatureExtractor(), library.WhisperTokenizer(**how)
    ).save_pretrained(directory)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
