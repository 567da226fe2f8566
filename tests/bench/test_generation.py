"""The comparison of text generation, once and small."""

from pathlib import Path

from tests.bench.generation import GenerationComparison, measure
from tests.support import tiny_model


def test_both_ends_of_the_comparison_are_measured(tmp_path: Path) -> None:
    tiny_model.make(tmp_path / "model")
    rounds = [each for side in ("ours", "generate") for each in measure(side, tmp_path / "model", [1, 2], 4)]
    assert [(each.side, each.batch) for each in rounds] == [
        ("ours", 1),
        ("ours", 2),
        ("generate", 1),
        ("generate", 2),
    ]
    assert all(each.tokens_per_s > 0 and each.cpu_ms > 0 for each in rounds)
    told = str(GenerationComparison(tuple(rounds)))
    assert "× generate" in told
    assert "serve" not in told


def test_what_is_not_done_in_time_is_left_out(tmp_path: Path) -> None:
    tiny_model.make(tmp_path / "model")
    for side in ("ours", "generate"):
        assert measure(side, tmp_path / "model", [1], 4, limit_s=0.2) == []
