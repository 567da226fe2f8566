"""A run of pytest in forked processes, as its user sees it."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

from tests.support.forked_run import ForkedRun
from tests.support.forked_run import __name__ as plugin

_ROOT = Path(__file__).parents[2]
_FILES = {
    "conftest.py": """
        import os
        import pytest

        def pytest_configure(config): config.addinivalue_line("markers", "long: begun first")

        @pytest.fixture(scope="session", autouse=True)
        def place(tmp_path_factory):
            place = tmp_path_factory.getbasetemp()
            assert place.name == "popen-" + os.environ["PYTEST_XDIST_WORKER"]
            yield place
            (place.parent / f"left-by-{os.getpid()}").touch()
    """,
    "test_one.py": """
        import os
        import signal
        import warnings
        import pytest

        SEEN = []

        def test_first(): SEEN.append("first")
        def test_second(): assert SEEN == ["first"]
        def test_wrong():
            print("what it wrote")
            assert 1 == 2
        def test_skipped(): pytest.skip("for a reason")
        def test_warns(): warnings.warn("what it warned of")
        def test_killed(): os.kill(os.getpid(), signal.SIGKILL)
        def test_behind(): assert SEEN == []
    """,
    "test_two.py": "def test_fine(place): pass",
    "test_three.py": """
        import pytest

        pytestmark = pytest.mark.long

        def test_fine(place): pass
    """,
}
"""Name of a file → its text. One of the tests kills its process."""


def run(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    for name, text in _FILES.items():
        (directory / name).write_text(dedent(text))
    line = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={directory}", "-rs", "--forks=2"]
    line += ["-p", plugin, "-p", "no:cacheprovider"]
    line += [f"--basetemp={directory / 'temporary'}", str(directory), *arguments]
    plain = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        line, cwd=_ROOT, env=plain, capture_output=True, text=True, timeout=120, check=False
    )


def test_each_test_is_reported_once_whatever_becomes_of_its_process(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert ended.returncode == 1, ended
    assert "2 failed, 6 passed, 1 skipped, 1 warning" in ended.stdout
    assert "what it wrote" in ended.stdout
    assert "what it warned of" in ended.stdout
    assert "for a reason" in ended.stdout
    assert "ended with exit code -9 in this test" in ended.stdout.partition("_ test_killed _")[2]
    left = list((tmp_path / "temporary").glob("left-by-*"))
    assert len(left) == 2  # by one at its end, and by the one that went on behind the kill


def test_all_is_well_if_all_tests_pass(tmp_path: Path) -> None:
    ended = run(tmp_path, "-k", "fine")
    assert ended.returncode == 0, ended
    assert "2 passed" in ended.stdout


def test_long_files_are_begun_first(tmp_path: Path) -> None:
    ended = run(tmp_path, "-v", "-k", "fine or first", "--forks=1")
    began = [line.split("::")[0] for line in ended.stdout.splitlines() if "PASSED" in line]
    assert [name.rpartition("/")[2] for name in began] == ["test_three.py", "test_one.py", "test_two.py"]


def test_files_are_taken_from_both_ends_but_long_ones_first() -> None:
    def item(name: str) -> Any:
        return SimpleNamespace(
            path=Path(name), get_closest_marker=lambda _: True if name.startswith("long") else None
        )

    items = [item(name) for name in ("a", "a", "long", "b", "c")]
    run: Any = ForkedRun
    taken = run(SimpleNamespace(items=items, config=None), 2)
    assert [taken.take(from_end=from_end) for from_end in (True, True, False, True)] == [
        [2],
        [4],
        [0, 1],
        [3],
    ]


def test_nothing_new_begins_after_enough_failures(tmp_path: Path) -> None:
    ended = run(tmp_path, "--exitfirst", "--forks=1", "-k", "test_one or test_two")
    assert ended.returncode == 1, ended
    assert "1 failed, 2 passed" in ended.stdout
