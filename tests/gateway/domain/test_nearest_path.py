"""The path that a client most likely meant."""

import pytest

from gateway.domain.nearest_path import nearest


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/models", "/v1/models"),
        ("/v1/chat", "/v1/chat/completions"),
        ("/v1/models/", "/v1/models"),
        ("/heath", "/health"),
        ("/wp-login.php", None),
        ("/v1/moderation", "/v1/moderations"),
        ("/v1/transformations", None),
        ("/v1/files", None),
        ("/v1/completion", "/v1/completions"),
        ("/openai/v1/embedding", "/v1/embeddings"),
        ("/api/pull", None),
        ("/api/tag", "/api/tags"),
    ],
)
def test_the_nearest_path_is_named(path: str, near: str | None) -> None:
    assert nearest(path) == near
