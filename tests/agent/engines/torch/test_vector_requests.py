"""Request bodies of the routes that read texts and write none."""

from typing import Any

import pytest

from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.vector_requests import EmbeddingRequest, RerankRequest, ScoreRequest


def refusal(read: Any, body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    return caught.value


@pytest.mark.parametrize("given", ["a", ["a"], [5, 6], [[5, 6]]])
def test_embedding_input_is_one_or_several_of_text_or_tokens(given: Any) -> None:
    assert EmbeddingRequest.read({"input": given}).input in (["a"], [[5, 6]])


@pytest.mark.parametrize("given", [None, [], "", [""], [[]], [1.5], ["a"] * 2049])
def test_bad_embedding_input_is_refused(given: Any) -> None:
    assert refusal(EmbeddingRequest.read, {"input": given}).param == "input"


def test_documents_are_strings_or_have_a_text() -> None:
    request = RerankRequest.read({"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1})
    assert request.texts == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": [""]}, "documents"),
        ({"documents": [{"image": "x"}]}, "documents"),
        ({"query": ""}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"rank_fields": ["x"]}, "rank_fields"),
    ],
)
def test_bad_rerank_requests_are_refused_by_name(change: Any, param: str) -> None:
    assert refusal(RerankRequest.read, {"query": "q", "documents": ["a"]} | change).param == param


def test_one_text_or_as_many_are_compared() -> None:
    assert ScoreRequest.read({"text_1": "a", "text_2": ["b", "c"]}).text_1 == ["a"]
    assert refusal(ScoreRequest.read, {"text_1": ["a", "b"], "text_2": ["b"] * 3}).param == "text_1"
