import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.runtime.config.networks import Networks

ADAPTER = TypeAdapter(Networks)


def test_networks_and_addresses_are_kept_as_they_are_written() -> None:
    written = ["10.1.0.0/16", "::1", "192.0.2.7"]
    assert ADAPTER.validate_python(written) == written


@pytest.mark.parametrize("wrong", ["10.1.0.1/16", "localhost", ""])
def test_what_is_no_network_is_refused_with_its_text(wrong: str) -> None:
    with pytest.raises(ValidationError, match=repr(wrong) if wrong else "does not appear"):
        ADAPTER.validate_python(["10.0.0.0/8", wrong])


def test_more_than_a_thousand_are_refused() -> None:
    with pytest.raises(ValidationError, match="at most 1000"):
        ADAPTER.validate_python(["10.0.0.0/8"] * 1001)
