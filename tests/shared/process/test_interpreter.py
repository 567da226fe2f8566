import subprocess
import sys
from pathlib import Path

import pytest

from shared.process.interpreter import grade, has_headers, is_optimised


@pytest.mark.parametrize(
    ("arguments", "flag", "optimised"),
    [
        ("'--prefix=/x' '--enable-optimizations'", "-fprofile-use", True),
        ("'--prefix=/x'", "-fprofile-use", False),
        pytest.param("'--prefix=/usr'", "", True, id="Debian's"),
        pytest.param(None, None, True, id="Windows"),
    ],
)
def test_an_optimised_build_is_known_by_its_settings(
    arguments: str | None, flag: str | None, optimised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"CONFIG_ARGS": arguments, "PGO_PROF_USE_FLAG": flag}
    monkeypatch.setattr("sysconfig.get_config_var", variables.get)
    assert is_optimised() is optimised


def test_headers_are_looked_for_where_compilers_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert not has_headers()
    (tmp_path / "Python.h").touch()
    assert has_headers()


@pytest.mark.parametrize(("headers", "optimised", "worth"), [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)])
def test_headers_are_worth_more_than_optimisations(
    headers: int, optimised: int, worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.process.interpreter.has_headers", lambda: bool(headers))
    monkeypatch.setattr("shared.process.interpreter.is_optimised", lambda: bool(optimised))
    assert grade() == worth


def test_it_needs_nothing_that_is_installed() -> None:
    program = "from shared.process.interpreter import grade; print(grade())"
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-IS", "-c", f"import sys; sys.path[:0] = [{str(root)!r}]; {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{grade()}\n"
