"""Commands on a state directory of the test's own."""

from pathlib import Path

import pytest

from tests.gateway.cli.command_line import Run, running


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory that is not there yet."""
    return tmp_path / "state"


@pytest.fixture
def run(state: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``trunkline ARGUMENTS`` on that state."""
    return running(state, monkeypatch)
