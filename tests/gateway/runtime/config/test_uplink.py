"""Settings of the uplink that do not fit are told."""

import pytest
from pydantic import ValidationError

from gateway.runtime.config.uplink import UplinkTable


def test_the_url_alone_will_do_and_labels_are_labels() -> None:
    table = UplinkTable.model_validate({"url": "https://llm.example.com", "labels": {"region": "eu"}})
    assert (table.join, table.name, table.labels) == (None, None, {"region": "eu"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"join": "tlj_x"}, "need uplink.url"),
        ({"name": "eu"}, "need uplink.url"),
        ({"url": "https://x", "name": "EU West"}, "pattern"),
        ({"url": "https://x", "labels": {"a b": "c"}}, "no label's name"),
        ({"url": "https://x", "labels": {"a": "c d"}}, "no label's value"),
        ({"url": "https://x", "token": "y"}, "Extra inputs"),
    ],
)
def test_what_does_not_fit_is_told(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        UplinkTable.model_validate(given)


def test_a_token_is_not_shown() -> None:
    assert "tlj_secret" not in repr(UplinkTable.model_validate({"url": "https://x", "join": "tlj_secret"}))
