"""Starts are not slowed by looking for garbage that is not there."""

import gc
from collections.abc import Iterator

import pytest

from shared.imports import GENERATIONS, without_collection


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_nothing_is_collected_inside_and_seldom_afterwards() -> None:
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == GENERATIONS


def test_a_failed_import_leaves_collection_on() -> None:
    with pytest.raises(ImportError), without_collection():
        raise ImportError("no")
    assert gc.isenabled()
