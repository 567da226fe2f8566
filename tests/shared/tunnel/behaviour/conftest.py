"""What tests of tunnels in memory have together."""

from collections.abc import Iterator

import pytest

from tests.support.lines import ManualLoop


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    loop.close()
    assert loop.failures == []
