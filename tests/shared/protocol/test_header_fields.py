"""Header fields of one connection, and how fields are written."""

import pytest

from shared.protocol.header_fields import FIELD_NAME, FORBIDDEN_IN_VALUE, HOP_BY_HOP, connection_options


def test_the_fields_of_one_connection_are_those_of_the_standard() -> None:
    # RFC 9110 §7.6.1, with those for proxies (§11.7) and Connection and Transfer-Encoding themselves
    standard = {"connection", "proxy-connection", "keep-alive", "te", "transfer-encoding", "upgrade"}
    assert standard | {"trailer", "proxy-authenticate", "proxy-authorization"} == HOP_BY_HOP
    assert all(FIELD_NAME.fullmatch(name) for name in HOP_BY_HOP)


def test_a_connection_names_further_fields_in_any_case() -> None:
    assert connection_options(["close, X-Own", " x-other "]) == {"close", "x-own", "x-other"}
    assert connection_options([]) == frozenset()


@pytest.mark.parametrize("name", ["", "Upper", "a b", "a:b", "é", "a\n"])
def test_what_is_no_name_of_a_field_is_known(name: str) -> None:
    assert FIELD_NAME.fullmatch(name) is None


@pytest.mark.parametrize(
    ("value", "forbidden"), [("a\tb", False), ("é", False), ("a\nb", True), ("\x7f", True)]
)
def test_control_characters_are_forbidden_in_values_but_the_tab(value: str, forbidden: bool) -> None:
    assert (FORBIDDEN_IN_VALUE.search(value) is not None) is forbidden
