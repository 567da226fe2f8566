"""Classes, scores and reranking over HTTP, by tiny models; numbers are compared with transformers'."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
import torch
import transformers
from tokenizers.processors import TemplateProcessing

from agent.engines.torch.engine import TorchEngine
from agent.engines.torch.http import EngineHTTP
from agent.engines.torch.startup import EngineOptions
from tests.support import tiny_model

SIZES: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
    "pad_token_id": 257,
}
TEXTS = ["short", "a text that is rather longer than the first", "mid size"]


def make(directory: Path, tokenizer: Path, network: Any) -> Path:
    """A model whose tokenizer joins pairs as BERT's does."""
    tiny_model.save(network, directory)
    shutil.copy(tokenizer / "tokenizer_config.json", directory)
    found = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    found.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 256), ("</s>", 257)]
    )
    found.save(str(directory / "tokenizer.json"))
    return directory


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[TorchEngine, httpx.AsyncClient]]:
    torch.set_num_threads(1)
    engine = TorchEngine.load(EngineOptions(model=directory, name="m", device="cpu", slots=2))
    engine.start(lambda reason: None)
    transport = httpx.ASGITransport(EngineHTTP(engine, None).app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=30) as client:
        yield engine, client
    assert (engine.running, engine.waiting, engine.admission.taken) == (0, 0, 0)
    engine.stop(timeout_s=5.0)


def classes(kind: str, **options: Any) -> Any:
    torch.manual_seed(3)
    if kind == "llama":
        config: Any = transformers.LlamaConfig(**SIZES, **options)
        return transformers.LlamaForSequenceClassification(config)  # type: ignore[no-untyped-call]
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, **options))


def logits(engine: TorchEngine, *texts: str) -> torch.Tensor:
    """By the model alone, without a batch."""
    model = engine.model
    encoded = model.tokenizer(*texts, return_tensors="pt")
    if "llama" in model.network.config.model_type:
        encoded.pop("token_type_ids", None)
    with torch.inference_mode():
        found: torch.Tensor = model.network(**encoded).logits[0]
    return found


@pytest.mark.parametrize("kind", ["bert", "llama"])
async def test_classes_have_the_probabilities_that_the_model_gives(
    tiny_directory: Path, tmp_path: Path, kind: str
) -> None:
    network = classes(kind, id2label={0: "good", 1: "bad", 2: "neither"})
    async with served(make(tmp_path / "m", tiny_directory, network)) as (engine, client):
        assert engine.facts.routes == ("classify",)
        body = (await client.post("/v1/classify", json={"model": "m", "input": TEXTS})).json()
        for text, found in zip(TEXTS, body["data"], strict=True):
            expected = logits(engine, text).softmax(dim=-1)
            assert found["probs"] == pytest.approx(expected.tolist(), abs=1e-5)
            assert found["label"] == ("good", "bad", "neither")[int(expected.argmax())]
            assert found["num_classes"] == 3
        one = (await client.post("/classify", json={"input": TEXTS[0]})).json()
        assert one["data"][0]["probs"] == pytest.approx(body["data"][0]["probs"], abs=1e-5)
        assert body["usage"]["prompt_tokens"] == sum(len(text) + 2 for text in TEXTS)
        for path in ("/v1/embeddings", "/v1/rerank", "/v1/chat/completions"):
            asked = {
                "input": "x",
                "query": "x",
                "documents": ["y"],
                "messages": [{"role": "user", "content": "x"}],
            }
            members = {"/v1/embeddings": ["input"], "/v1/rerank": ["query", "documents"]}.get(
                path, ["messages"]
            )
            response = await client.post(path, json={name: asked[name] for name in members})
            assert response.status_code == 404


async def test_classes_that_may_all_apply_are_judged_apart(tiny_directory: Path, tmp_path: Path) -> None:
    network = classes("bert", num_labels=2, problem_type="multi_label_classification")
    async with served(make(tmp_path / "m", tiny_directory, network)) as (engine, client):
        body = (await client.post("/v1/classify", json={"input": TEXTS[0]})).json()
        assert body["data"][0]["probs"] == pytest.approx(
            logits(engine, TEXTS[0]).sigmoid().tolist(), abs=1e-5
        )


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_a_cross_encoder_reranks_by_reading_both_texts(
    tiny_directory: Path, tmp_path: Path, path: str
) -> None:
    async with served(make(tmp_path / "m", tiny_directory, classes("bert", num_labels=1))) as (
        engine,
        client,
    ):
        assert engine.facts.routes == ("classify", "rerank", "score")
        asked = {"model": "m", "query": "which one", "documents": TEXTS}
        body = (await client.post(path, json=asked)).json()
        expected = [float(logits(engine, "which one", text).sigmoid()) for text in TEXTS]
        order = sorted(range(3), key=lambda index: -expected[index])
        assert [each["index"] for each in body["results"]] == order
        scores = [each["relevance_score"] for each in body["results"]]
        assert scores == pytest.approx(sorted(expected, reverse=True), abs=1e-5)
        assert [each["document"]["text"] for each in body["results"]] == [TEXTS[index] for index in order]
        best = (await client.post(path, json=asked | {"top_n": 1, "return_documents": False})).json()
        assert best["results"] == [
            {"index": order[0], "relevance_score": pytest.approx(max(expected), abs=1e-5)}
        ]
        pairs = {"text_1": "which one", "text_2": TEXTS}
        found = (await client.post("/v1/score", json=pairs)).json()["data"]
        assert [each["score"] for each in found] == pytest.approx(expected, abs=1e-5)
        long = await client.post(path, json=asked | {"documents": ["x" * 200]})
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_an_encoder_judges_by_the_cosine_of_embeddings(tiny_directory: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    network = transformers.BertModel(transformers.BertConfig(**SIZES))
    async with served(make(tmp_path / "m", tiny_directory, network)) as (engine, client):
        assert engine.facts.routes == ("embeddings", "rerank", "score")
        body = (await client.post("/v1/embeddings", json={"input": ["which one", *TEXTS]})).json()
        query, *others = [torch.tensor(each["embedding"]) for each in body["data"]]
        expected = [float(torch.cosine_similarity(query, other, dim=0)) for other in others]
        found = (await client.post("/score", json={"text_1": "which one", "text_2": TEXTS})).json()["data"]
        assert [each["score"] for each in found] == pytest.approx(expected, abs=1e-5)
        best = (await client.post("/v1/rerank", json={"query": "which one", "documents": TEXTS})).json()
        assert best["results"][0]["relevance_score"] == pytest.approx(max(expected), abs=1e-5)
