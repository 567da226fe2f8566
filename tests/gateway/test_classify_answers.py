"""How much a request allows its engine to write."""

import pytest

from gateway.surface import CHAT
from tests.gateway.test_classify import COMPLETIONS, EMBEDDINGS, RESPONSES, asked


def test_output_is_what_the_request_allows_times_its_choices() -> None:
    assert asked({"max_tokens": 5, "n": 3}).output_tokens == 15
    assert asked({"max_completion_tokens": 7, "max_tokens": 5}).output_tokens == 7
    assert asked({"max_completion_tokens": 1, "max_tokens": 5}, COMPLETIONS).output_tokens == 5
    assert asked({"max_tokens": 5, "n": 2, "best_of": 4}, COMPLETIONS).output_tokens == 20
    assert asked({"max_tokens": 5, "n": True}).output_tokens == 5
    assert asked({"max_tokens": -1}).output_tokens == CHAT.output_tokens
    assert asked({"max_output_tokens": 9}, RESPONSES).output_tokens == 9
    assert asked({}).output_tokens == CHAT.output_tokens
    assert asked({"max_tokens": 9}, EMBEDDINGS).output_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "answers"),
    [("one", 1), (["one", "two", "three"], 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2), ([], 1), ({}, 1)],
)
def test_each_prompt_of_a_completion_has_answers_of_its_own(prompt: object, answers: int) -> None:
    request = asked({"prompt": prompt, "max_tokens": 50, "n": 2}, COMPLETIONS)
    assert request.most_tokens == request.output_tokens == 100 * answers
    assert asked({"prompt": prompt, "max_tokens": 50}, CHAT).most_tokens == 50
