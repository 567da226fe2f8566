"""Starts are not slowed by looking for garbage that is not there, and may open many files."""

import gc
import resource
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from shared.process.startup import (
    GENERATIONS,
    file_limit,
    home_directory,
    raise_file_limit,
    without_collection,
    without_optional,
)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What is frozen stays so: all tests there are are among it."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


def is_looked_at(thing: object) -> bool:
    """Whether it is among what is looked through for garbage."""
    return any(each is thing for each in gc.get_objects())


def test_nothing_is_collected_inside_and_seldom_afterwards() -> None:
    with without_collection():
        assert not gc.isenabled()
        made: list[list[object]] = [[]]
        assert is_looked_at(made)
    assert gc.isenabled()
    assert not is_looked_at(made)
    assert gc.get_threshold() == GENERATIONS


def test_afterwards_it_is_collected_as_often_as_is_wanted() -> None:
    with without_collection((500, 5, 5)):
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_threshold() == (500, 5, 5)


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


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def soft_limit(soft: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_it_is_raised_to_what_is_wanted() -> None:
    soft_limit(512)
    assert raise_file_limit(600) == file_limit() == 600


def test_it_is_never_lowered() -> None:
    soft_limit(512)
    assert raise_file_limit(16) == 512


def test_no_more_is_asked_for_than_may_be() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft_limit(512)
    assert raise_file_limit(1 << 40) in (hard, 1 << 40)


def test_a_user_without_a_home_directory_is_at_home_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert home_directory() == Path("/home/ada")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert home_directory() == Path("/")
