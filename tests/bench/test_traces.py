"""The load of traces runs, and what it traces arrives."""

from pathlib import Path

import pytest

from shared.process.tracing.settings import NOT_INSTALLED
from tests.bench import traces
from tests.bench.peers import tools

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=NOT_INSTALLED)


@pytest.mark.slow
def test_a_short_run_has_figures_for_each_and_only_what_is_traced_comes(tmp_path: Path) -> None:
    if (problem := tools.missing()) is not None:
        pytest.skip(problem)
    figures = traces.run(tmp_path, 1, 0.1)
    assert [each.traced for each in figures.costs] == list(traces.RATIOS)
    assert all(each.requests > 0 and each.cpu_us > 0 for each in figures.costs)
    off, _, all_of_them = figures.costs
    assert (off.more_us, off.ratio) == (0.0, 1.0)
    assert figures.spans >= min(all_of_them.requests, 1000)
