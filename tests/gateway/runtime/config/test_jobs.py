"""Where files are kept is an address without credentials."""

import pytest
from pydantic import ValidationError

from gateway.runtime.config.jobs import JobsTable


@pytest.mark.parametrize("address", ["s3://bucket/prefix", "gs://bucket", "az://a/c", "file:///srv/objects"])
def test_object_stores_are_named_by_their_address(address: str) -> None:
    assert JobsTable(objects=address).objects == address


@pytest.mark.parametrize(
    ("address", "said"),
    [("/srv/objects", "SCHEME://PLACE"), ("ftp://host/x", "s3"), ("s3://user:secret@b/x", "environment")],
)
def test_what_is_no_such_address_is_refused(address: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        JobsTable(objects=address)
