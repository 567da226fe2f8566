"""The load of progress, once and small."""

from pathlib import Path

from tests.bench import progress
from tests.support.processes import House


def test_the_age_of_progress_is_measured(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        figures = progress.run(house, 2, 3.0)
    for ages in (figures.words, figures.previews):
        assert ages.read > 0
        assert 0 < ages.p50_ms <= ages.p99_ms <= ages.worst_ms
    assert "p99" in str(figures)
