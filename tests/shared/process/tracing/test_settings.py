"""Where traces go, and who says so."""

import pytest
from pydantic import ValidationError

from shared.process.tracing.settings import ENDPOINT_VARIABLE, OtelTable, check_installed, with_endpoint


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (None, None),
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/own/path", "https://c/own/path"),
    ],
)
def test_without_a_path_the_usual_one_is_meant(endpoint: str | None, url: str | None) -> None:
    assert OtelTable(endpoint=endpoint).traces_url == url


@pytest.mark.parametrize("endpoint", ["c:4318", "grpc://c:4317", "http://", "http://user:secret@c"])
def test_what_is_no_address_of_a_collector_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError):
        OtelTable(endpoint=endpoint)


def test_one_variable_sets_the_endpoint_of_all_programs_unless_their_own_does() -> None:
    common = {ENDPOINT_VARIABLE: "http://c:4318"}
    assert with_endpoint(common, "OWN", "<{}>") == {**common, "OWN": "<http://c:4318>"}
    own = {**common, "own": "another"}
    assert with_endpoint(own, "OWN", "{}") == own
    assert with_endpoint({}, "OWN", "{}") == {}


def test_nothing_need_be_installed_where_nothing_is_traced() -> None:
    check_installed(OtelTable())
