"""Long lists are made a slice at a time, and others have their turn between."""

import orjson
import pytest

from gateway.domain.slices import SLICE, in_slices
from gateway.fleet.registry import ServedModel
from tests.gateway.api.support import BEARER, FakeCatalog, Surface
from tests.support.turns import turns_during

MODELS = 10 * SLICE


async def test_everything_comes_in_order_and_a_short_list_at_once() -> None:
    assert [item async for item in in_slices(range(7), 3)] == list(range(7))
    assert [item async for item in in_slices(range(0))] == []

    async def read(count: int) -> None:
        async for _ in in_slices(range(count)):
            pass

    assert await turns_during(read(MODELS)) >= MODELS // SLICE - 1
    assert await turns_during(read(SLICE - 1)) == 0


@pytest.mark.parametrize("path", ["/v1/models", "/api/tags"])
async def test_a_list_of_many_models_lets_others_have_their_turns(path: str) -> None:
    models = [ServedModel(f"m{number:05}", 1, "trunkline", True, 1, ("chat",)) for number in range(MODELS)]
    call = Surface(catalog=FakeCatalog(*models)).ask("GET", path, BEARER)
    call.body(b"")
    assert await turns_during(call.done()) >= MODELS // SLICE - 1
    found = orjson.loads(call.content)
    assert len(found.get("data", found.get("models"))) == MODELS
