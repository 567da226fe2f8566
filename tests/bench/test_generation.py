"""The comparison of text generation, once and small."""

from pathlib import Path

from tests.bench.generation import SIDES, GenerationComparison, GenerationFigures, measure
from tests.support import tiny_model


def test_both_ends_of_the_comparison_are_measured(tmp_path: Path) -> None:
    tiny_model.make(tmp_path / "model")
    rounds = [
        each for side in ("ours", "generate") for each in measure(side, 0, tmp_path / "model", [1, 2], 4)
    ]
    assert [(each.side, each.batch) for each in rounds] == [
        ("ours", 1),
        ("ours", 2),
        ("generate", 1),
        ("generate", 2),
    ]
    assert all(each.tokens_per_s > 0 and each.cpu_ms > 0 for each in rounds)
    told = str(GenerationComparison(tuple(rounds)))
    assert told.count("ours: tokens/s × ") == 2
    assert "serve" not in told


def test_what_is_not_done_in_time_is_left_out(tmp_path: Path) -> None:
    tiny_model.make(tmp_path / "model")
    for side in ("ours", "generate"):
        assert measure(side, 0, tmp_path / "model", [1], 4, limit_s=0.2) == []


def test_ratios_are_of_the_rounds_that_both_sides_were_done_in() -> None:
    rates = {("ours", 0): 20.0, ("ours", 1): 30.0, ("ours", 2): 1.0, ("serve", 0): 10.0, ("serve", 1): 10.0}
    rounds = [GenerationFigures(side, number, 8, rate, 1 / rate) for (side, number), rate in rates.items()]
    told = str(GenerationComparison(tuple(rounds), SIDES))
    assert "generate        was not done in time" in told
    assert "ours: tokens/s × 2.50 (2.00 to 3.00), CPU × 0.42 (0.33 to 0.50)" in told
