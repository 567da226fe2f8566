"""Starts are not slowed by looking for garbage that is not there."""

import gc

import pytest

from shared.imports import without_collection


def test_nothing_is_collected_inside_and_everything_afterwards() -> None:
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()


def test_a_failed_import_leaves_collection_on() -> None:
    with pytest.raises(ImportError), without_collection():
        raise ImportError("no")
    assert gc.isenabled()
    gc.unfreeze()
