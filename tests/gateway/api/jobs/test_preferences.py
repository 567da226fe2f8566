import pytest

from gateway.api.jobs.preferences import MOST_WAIT_S, Preferences, preferences_of


@pytest.mark.parametrize(
    ("field", "found"),
    [
        (b"respond-async", Preferences(True)),
        (b"Respond-Async, wait=10", Preferences(True, 10.0)),
        (b'wait="7"; foo', Preferences(False, 7.0)),
        (b"respond-async;x=1 , return=minimal", Preferences(True)),
        (b"wait=5, wait=9", Preferences(False, 5.0)),
        (b"wait=999999", Preferences(False, MOST_WAIT_S)),
        (b"wait=-1", Preferences()),
        (b"wait=soon, , =", Preferences()),
        (b"\xff\x00,,;;", Preferences()),
        (b"", Preferences()),
    ],
)
def test_preferences_are_read_and_what_is_none_is_ignored(field: bytes, found: Preferences) -> None:
    assert preferences_of({b"prefer": field}) == found


def test_without_the_header_there_is_none() -> None:
    assert preferences_of({}) == Preferences()
