"""What a function gave, remembered."""

import pytest

from gateway.domain.remembered import NAME_CHARS, Remembered


def test_a_function_is_called_once_for_what_it_is_asked_again() -> None:
    asked: list[str] = []

    def upper(name: str) -> str:
        asked.append(name)
        return name.upper()

    remembered = Remembered(upper, 8)
    assert [remembered[name] for name in ("a", "b", "a", "b")] == ["A", "B", "A", "B"]
    assert asked == ["a", "b"]


def test_it_begins_anew_when_it_is_full() -> None:
    remembered: Remembered[str, int] = Remembered(int, 3)
    for number in range(100):
        assert remembered[str(number)] == number
        assert len(remembered) <= 3
    assert set(remembered) == {"99"}


def test_long_names_are_not_remembered() -> None:
    remembered: Remembered[str, int] = Remembered(len, 3)
    long = "x" * (NAME_CHARS + 1)
    assert remembered[long] == len(long)
    assert not remembered


def test_what_is_raised_is_not_remembered() -> None:
    remembered: Remembered[str, int] = Remembered(int, 3)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            remembered["x"]
    assert not remembered
