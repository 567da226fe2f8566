"""Spans that stay here, in place of a collector."""

from collections.abc import Callable, Sequence

import pytest

from shared.process.tracing.export import SpanExporter
from shared.process.tracing.spans import SpanData


class KeptSpans(SpanExporter):
    """Makes spans at once and keeps them."""

    def __init__(self) -> None:
        super().__init__(lambda: pytest.fail("nothing is sent"), 100)
        self.spans: list[SpanData] = []

    def put(self, spans: int, traced: Callable[[], Sequence[SpanData]]) -> None:
        made = traced()
        assert len(made) <= spans
        self.spans += made
