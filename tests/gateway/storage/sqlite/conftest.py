"""Here databases are made from nothing, as for users."""

from collections.abc import Iterator

import pytest

from gateway.storage.sqlite import database
from tests.support.sqlite_store import replaced

_PREPARE = database._prepare_file


@pytest.fixture(autouse=True)
def _made_from_nothing() -> Iterator[None]:
    with replaced(_PREPARE):
        yield
