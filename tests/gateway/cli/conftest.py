"""Commands on a state directory of the test's own."""

from pathlib import Path

import pytest

from tests.gateway.cli.command_line import Run, running
from tests.support.forks import use_forks


@pytest.fixture(scope="package", autouse=True)
def _forked_commands() -> None:
    """What becomes of a command does not depend on the imports of its process being its own."""
    use_forks()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory that is not there yet."""
    return tmp_path / "state"


@pytest.fixture
def run(state: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``trunkline ARGUMENTS`` on that state."""
    return running(state, monkeypatch)
