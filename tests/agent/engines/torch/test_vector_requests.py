"""Request bodies of the routes that read texts and write none."""

from typing import Any

import pytest

from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.vector_requests import EmbeddingRequest


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
