"""The limit of open files is raised as far as it may be."""

import resource
from collections.abc import Iterator

import pytest

from shared.process.open_files import file_limit, raise_file_limit


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
