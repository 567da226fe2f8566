"""How long loading takes is remembered, and forgotten at no other price."""

from pathlib import Path

import pytest

from agent.capacity.load_times import MOST, LoadTimes


def test_the_average_follows_what_is_measured_and_outlives_the_program(tmp_path: Path) -> None:
    path = tmp_path / "load_times.json"
    times = LoadTimes(path)
    assert times.of("vllm") is None
    times.note("vllm", 100.0)
    assert times.of("vllm") == 100.0
    times.note("vllm", 50.0)
    assert times.of("vllm") == 85.0
    assert LoadTimes(path).of("vllm") == 85.0
    assert [each.name for each in tmp_path.iterdir()] == ["load_times.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"vllm": "soon", "b": -1, "c": null, "d": 1e99, "e": NaN}'])
def test_a_damaged_file_costs_the_figures_in_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "load_times.json"
    path.write_text(text)
    times = LoadTimes(path)
    assert [times.of(name) for name in ("vllm", "b", "c", "d", "e")] == [None] * 5
    times.note("vllm", 3.0)
    assert LoadTimes(path).of("vllm") == 3.0


def test_a_file_that_cannot_be_written_costs_what_a_restart_would_keep(tmp_path: Path) -> None:
    times = LoadTimes(tmp_path / "no" / "such" / "directory.json")
    times.note("vllm", 3.0)
    assert times.of("vllm") == 3.0


def test_there_is_an_end_to_what_is_remembered() -> None:
    times = LoadTimes()
    for number in range(MOST + 1):
        times.note(str(number), 1.0)
    assert (times.of("0"), times.of("1"), times.of(str(MOST))) == (None, 1.0, 1.0)
