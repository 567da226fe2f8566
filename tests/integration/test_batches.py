"""Batches of a running gateway, as OpenAI's SDK sees them."""

from collections.abc import Iterator

import orjson
import pytest
from openai import OpenAI
from openai.types import Batch

from tests.integration.conftest import MODEL, Site
from tests.support.processes import until


@pytest.fixture
def sdk(site: Site) -> Iterator[OpenAI]:
    with OpenAI(base_url=site.base_url, api_key=site.key, max_retries=0) as client:
        yield client


def ended(sdk: OpenAI, *models: str) -> Batch:
    """A batch with a line for each of the models, once it is over."""
    lines = [
        {"custom_id": str(place), "method": "POST", "url": "/v1/chat/completions", "body": {"model": model}}
        for place, model in enumerate(models)
    ]
    file = sdk.files.create(file=b"\n".join(map(orjson.dumps, lines)), purpose="batch")
    batch = sdk.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    found: list[Batch] = []

    def is_over() -> bool:
        found[:] = [sdk.batches.retrieve(batch.id)]
        return found[0].status in ("failed", "completed", "expired", "cancelled")

    until("the batch is over", is_over, 60)
    return found[0]


def test_a_file_is_held_against_the_models_that_are_served(sdk: OpenAI) -> None:
    batch = ended(sdk, MODEL, "no-such-model")
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(each.code, each.line) for each in batch.errors.data or ()] == [("mismatched_model", 2)]
    alone = ended(sdk, "no-such-model")
    assert alone.errors is not None
    assert [each.code for each in alone.errors.data or ()] == ["model_not_found"]
