"""How much a request allows its engine to write."""

import pytest
from msgspec.structs import replace

from gateway.domain.request import Request, RequestBody
from gateway.domain.surface import CHAT, ENDPOINTS, ENGINE, EngineTarget
from gateway.pipeline.classify import classify
from gateway.pipeline.client_body import BodyKind, ClientBody
from tests.gateway.pipeline.test_classify import (
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    PRINCIPAL,
    RESPONSES,
    asked,
    head,
)


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


def test_ollamas_own_routes_are_limited_as_ollama_reads_them() -> None:
    (chat,) = (each for each in ENDPOINTS if each.path == "/api/chat")
    assert asked({"max_tokens": 5}, chat).most_tokens is None, "it knows no such limit"
    assert asked({"max_tokens": 5, "options": {"num_predict": 7}}, chat).most_tokens == 7
    assert asked({"options": {"num_predict": -1}}, chat).most_tokens is None


def test_engines_own_names_raise_a_limit_and_never_set_one() -> None:
    assert asked({"max_tokens": 1, "n_predict": 4096}).most_tokens == 4096
    assert asked({"n_predict": 1}).most_tokens is None
    assert asked({"max_tokens": 5, "n": 2}, MESSAGES).choices == 2
    assert asked({"ignore_eos": True}).endless


def engines_own(body: bytes, path: str = "/completion", method: str = "POST") -> Request:
    at = replace(head(ENGINE, method=method, model="m"), target=EngineTarget(path, "m", "/engines/m"))
    content = RequestBody(body, None, len(body))
    return classify(at, ClientBody(BodyKind.OPAQUE, content), PRINCIPAL)


def test_a_request_at_an_engines_own_path_asks_for_what_its_body_says() -> None:
    request = engines_own(b'{"prompt":"hello there","n_predict":900}')
    assert (request.input_tokens, request.most_tokens, request.output_tokens) == (10, 900, 900)
    unlimited = engines_own(b'{"prompt":"hello there"}')
    assert (unlimited.most_tokens, unlimited.output_tokens) == (None, 256)
    fetched = engines_own(b"", "/metrics", "GET")
    assert (fetched.input_tokens, fetched.most_tokens, fetched.output_tokens) == (0, 0, 0)
    upload = engines_own(b"\x89PNG\xff" * 1000, "/upload/image")
    assert (upload.input_tokens, upload.most_tokens) == (0, None)
