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


def test_a_header_is_sent_without_the_line_end_behind_it() -> None:
    table = OtelTable.model_validate({"headers": {"authorization": "Bearer x\n"}})
    assert table.headers["authorization"].get_secret_value() == "Bearer x"


@pytest.mark.parametrize(
    "wrong",
    [
        {"headers": {"authorization": "x\ny: hush"}},
        {"headers": {"a b": "hush"}},
        {"headers": {"": "hush"}},
        {"endpoint": "http://c:99999"},
    ],
)
def test_what_no_request_to_a_collector_can_have_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as caught:
        OtelTable.model_validate(wrong)
    assert "hush" not in caught.value.errors()[0]["msg"]
