"""What tests of the store on a server share."""

from collections.abc import Iterator

import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage.postgres import PostgresDatabase


@pytest.fixture
def database(postgres_address: StoreAddress) -> Iterator[PostgresDatabase]:
    opened = PostgresDatabase(postgres_address)
    yield opened
    opened.close()
