"""A tiny real model for the tests that compute."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import torch

from agent.engines.torch.engine import TorchEngine
from agent.engines.torch.http import EngineHTTP
from agent.engines.torch.startup import EngineOptions
from tests.support import tiny_model


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of some 100 kB that speaks noise, with a byte-level tokenizer and a chat template."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model.make(directory)
    return directory


@pytest.fixture(scope="session")
def engine(tiny_directory: Path) -> Iterator[TorchEngine]:
    """That model with two slots and one place to wait."""
    torch.set_num_threads(1)
    options = EngineOptions(model=tiny_directory, name="tiny", device="cpu", slots=2, queue=1)
    engine = TorchEngine.load(options)
    yield engine
    assert engine.stop(timeout_s=5.0)


@pytest.fixture
async def client(engine: TorchEngine) -> AsyncIterator[httpx.AsyncClient]:
    """Asks its HTTP surface; nothing of a request may remain."""
    engine.start(lambda reason: None)
    transport = httpx.ASGITransport(EngineHTTP(engine, None).app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=30) as client:
        yield client
    assert engine.admission.taken == 0
    assert (engine.running, engine.waiting) == (0, 0)
