"""What tests of all rooms of the gateway have together."""

from collections.abc import Iterator

import pytest

from tests.support.sqlite_store import copied_databases


@pytest.fixture(scope="session", autouse=True)
def _copied_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stores on files begin as copies of an empty one: to make its tables takes longer than most tests."""
    with copied_databases(tmp_path_factory.mktemp("empty")):
        yield
