"""A tiny real model for the tests that compute."""

from pathlib import Path

import pytest

from tests.support import tiny_model


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of some 100 kB that speaks noise, with a byte-level tokenizer and a chat template."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model.make(directory)
    return directory
