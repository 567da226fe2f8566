"""What is made of a model directory."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from agent.engines.torch import batching, models
from agent.engines.torch.embedding import embedder
from agent.engines.torch.errors import ModelUnusable
from agent.engines.torch.startup import EngineOptions
from tests.support import tiny_model

SIZES: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


decoder: Any = transformers.AutoModelForCausalLM.from_config
encoder: Any = transformers.AutoModel.from_config


def make(directory: Path, tokenizer: Path, network: Any) -> Path:
    tiny_model.save(network, directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, directory)
    return directory


def load(directory: Path, **options: Any) -> models.LoadedModel:
    return models.load(EngineOptions(model=directory, name="m", device="cpu", slots=2, **options))


def test_a_decoder_with_a_template_generates_and_chats(tiny_directory: Path) -> None:
    model = load(tiny_directory)
    assert model.generates
    assert model.has_template
    assert model.context_tokens == 512
    assert model.vocabulary == 258
    assert model.eos_ids == {257}
    assert model.network.dtype == torch.float32
    assert load(tiny_directory, max_context=100).context_tokens == 100
    assert load(tiny_directory, max_context=1000).context_tokens == 512


def test_a_decoder_without_a_template_does_not_chat(tiny_directory: Path, tmp_path: Path) -> None:
    network = transformers.AutoModelForCausalLM.from_pretrained(tiny_directory)
    assert not load(make(tmp_path / "m", tiny_directory, network)).has_template


@pytest.mark.parametrize(
    "config",
    [
        transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=16),
        transformers.GPT2Config(vocab_size=258, n_embd=32, n_layer=2, n_head=4, n_positions=128),
        transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=16),
    ],
    ids=["sliding window", "learned positions", "eager attention"],
)
def test_other_architectures_batch_as_they_compute(tiny_directory: Path, tmp_path: Path, config: Any) -> None:
    """That they do is proved by :func:`batching.start` itself."""
    torch.manual_seed(1)
    network = decoder(config)
    _, manager = batching.start(load(make(tmp_path / "m", tiny_directory, network)))
    assert manager.halt(timeout_s=5.0)


def test_weights_and_cache_keep_within_the_memory_that_was_granted(tiny_directory: Path) -> None:
    weights_bytes = sum(each.nbytes for each in load(tiny_directory).network.parameters())
    granted = weights_bytes + 400_000
    model, manager = batching.start(load(tiny_directory, memory_bytes=granted))
    assert 64 <= model.context_tokens < 512
    assert manager.halt(timeout_s=5.0)
    assert batching._room_bytes(load(tiny_directory, memory_bytes=granted)) == 400_000
    assert model.context_tokens <= manager.kv_tokens <= 400_000 / 100
    with pytest.raises(ModelUnusable, match="memory for a context of 0 tokens only"):
        batching.start(load(tiny_directory, memory_bytes=weights_bytes))


@pytest.mark.parametrize("config", [transformers.FalconConfig, transformers.MambaConfig])
def test_an_architecture_that_does_not_batch_is_refused(
    tiny_directory: Path, tmp_path: Path, config: Any
) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 258,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    network = decoder(config(**sizes))
    model = load(make(tmp_path / "m", tiny_directory, network))
    with pytest.raises(ModelUnusable, match="continuous batching"):
        batching.start(model)


def test_an_encoder_gives_embeddings_and_nothing_else(tiny_directory: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = encoder(transformers.BertConfig(**SIZES))
    model = load(make(tmp_path / "m", tiny_directory, network))
    assert not model.generates
    assert model.context_tokens == 128
    compute = embedder(model).compute
    texts = [[5, 6, 7], [9], [1, 2, 3, 4, 5, 6, 7, 8]]
    together, alone = compute(texts), [compute([text])[0] for text in texts]
    assert torch.allclose(torch.tensor(together), torch.tensor(alone), atol=1e-5)
    assert torch.allclose(torch.tensor(together).norm(dim=-1), torch.ones(3))


def test_positions_that_begin_after_the_padding_shorten_the_context(
    tiny_directory: Path, tmp_path: Path
) -> None:
    config = transformers.RobertaConfig(**SIZES, pad_token_id=1)
    directory = make(tmp_path / "m", tiny_directory, encoder(config))
    assert load(directory).context_tokens == 126


def test_an_encoder_decoder_is_refused(tiny_directory: Path, tmp_path: Path) -> None:
    config = transformers.T5Config(vocab_size=258, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    network = transformers.T5ForConditionalGeneration(config)
    with pytest.raises(ModelUnusable, match="encoder-decoder"):
        load(make(tmp_path / "m", tiny_directory, network))


def test_a_classifier_has_labels_and_generates_nothing(tiny_directory: Path, tmp_path: Path) -> None:
    config = transformers.BertConfig(**SIZES, id2label={0: "good", 1: "bad", 2: "neither"})
    network = transformers.BertForSequenceClassification(config)
    model = load(make(tmp_path / "m", tiny_directory, network))
    assert model.labels == ("good", "bad", "neither")
    assert not model.generates


def test_a_model_that_answers_questions_is_refused(tiny_directory: Path, tmp_path: Path) -> None:
    network = transformers.BertForQuestionAnswering(transformers.BertConfig(**SIZES))
    with pytest.raises(ModelUnusable, match="BertForQuestionAnswering"):
        load(make(tmp_path / "m", tiny_directory, network))


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"config\.json"):
        load(tmp_path)


def test_broken_weights_are_refused(tiny_directory: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_directory, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"no such thing")
    with pytest.raises(ModelUnusable, match="cannot be loaded"):
        load(tmp_path / "m")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelUnusable, match="CUDA"):
        models.choose_device("cuda")
