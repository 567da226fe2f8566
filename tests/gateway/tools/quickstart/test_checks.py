"""The check accepts what is right and names what is not."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.tools.quickstart.checks import run_checks
from gateway.tools.quickstart.client import Client, Streamed
from gateway.tools.quickstart.errors import WrongAnswer


class CannedClient(Client):
    """Answers from its attributes instead of from a gateway."""

    def __init__(self) -> None:
        super().__init__(port=1, key="k")
        self.pieces = ["One ", "endpoint."]
        self.done = True
        self.text = "One endpoint."
        self.completion_tokens = 3
        self.vectors = [[0.5, 1.0], [0.25, 1.0]]

    def stream_chat(self, body: dict[str, Any], facts: Streamed) -> Iterator[str]:
        facts.first_s = time.monotonic()
        yield from self.pieces
        facts.done = self.done

    def post(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/embeddings":
            return {"data": [{"embedding": vector} for vector in self.vectors]}
        usage = {"completion_tokens": self.completion_tokens}
        return {"choices": [{"message": {"content": self.text}}], "usage": usage}


def test_right_answers_give_a_verdict() -> None:
    verdict = run_checks(CannedClient(), "m")
    assert (verdict.answer, verdict.completion_tokens, verdict.dimensions) == ("One endpoint.", 3, 2)
    assert verdict.first_token_s >= 0


@pytest.mark.parametrize(
    ("attribute", "value", "complaint"),
    [
        ("done", False, "without data"),
        ("pieces", [" "], "empty"),
        ("text", "Another answer.", "the plain chat answered"),
        ("completion_tokens", 0, "counted no tokens"),
        ("vectors", [[1.0]], "two vectors"),
        ("vectors", [[1.0], [1.0, 2.0]], "two vectors"),
        ("vectors", [[1.0], [float("nan")]], "finite"),
        ("vectors", [[1.0], [1.0]], "the same embedding"),
    ],
)
def test_a_wrong_answer_is_named(attribute: str, value: object, complaint: str) -> None:
    client = CannedClient()
    setattr(client, attribute, value)
    with pytest.raises(WrongAnswer, match=complaint):
        run_checks(client, "m")
