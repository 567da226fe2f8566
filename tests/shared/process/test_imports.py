"""Starts are not slowed by looking for garbage that is not there."""

import gc
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

import pytest

from shared.process.imports import GENERATIONS, without_collection, without_optional


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


def test_a_package_that_can_be_done_without_is_not_found_inside_and_is_there_afterwards() -> None:
    sys.modules.pop("this", None)
    with without_optional("this", "gc"):
        with pytest.raises(ImportError):
            import_module("this")
        assert import_module("gc") is gc, "it was imported before"
    assert find_spec("this") is not None
    assert "this" not in sys.modules


def test_a_package_is_found_again_after_a_failed_import() -> None:
    with pytest.raises(ImportError), without_optional("this"):
        raise ImportError("no")
    assert "this" not in sys.modules
