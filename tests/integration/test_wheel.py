"""The wheel: built, installed and run, with a C compiler and without one."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from shared import __version__

ROOT = Path(__file__).parents[2]
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "gateway", "agent", "shared")


def wheel(directory: Path, **environment: str) -> Path:
    """Build it from a copy of the sources, as from a fresh clone."""
    sources = directory / "sources"
    sources.mkdir()
    leave = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "*.egg-info")
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, sources)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(directory), str(sources)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode and "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("the package index cannot be reached, so no wheel can be built")
    assert done.returncode == 0, done.stderr
    (built,) = directory.glob("trunkline-*.whl")
    return built


def version_of(built: Path, directory: Path) -> list[str]:
    """What ``trunkline --version`` says, installed from the wheel alone."""
    target = directory / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--target", str(target), str(built)], check=True, timeout=300)
    program = (
        "import shared.process.cli as cli, sys; print(cli.__file__); sys.argv[1:] = ['--version']; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**_with_native_functions(), "PYTHONPATH": str(target)},
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    where, *lines = done.stdout.splitlines()
    assert Path(where).is_relative_to(target)
    return lines


def _with_native_functions() -> dict[str, str]:
    """The environment, where these tests may be run without them."""
    return {name: value for name, value in os.environ.items() if name != "TRUNKLINE_NATIVE"}


def test_a_wheel_has_the_native_functions_where_they_can_be_built(tmp_path: Path) -> None:
    if shutil.which("cc") is None or not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        pytest.skip("there is no C compiler here, or no headers of Python")
    name, build = version_of(wheel(tmp_path), tmp_path)
    assert name == f"trunkline {__version__}"
    assert build.startswith("native speedups in use")


def test_a_wheel_without_them_works_as_well(tmp_path: Path) -> None:
    name, build = version_of(wheel(tmp_path, CC="false"), tmp_path)
    assert name == f"trunkline {__version__}"
    assert build.startswith("no native speedups")
