"""The wheel: built, installed and run, with a C compiler and without one."""

import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import pytest

from gateway.api.ui.files import read_files
from shared import __version__
from shared.process.ports import free_port
from tests.support.processes import START_S, until

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


def install(built: Path, directory: Path) -> Path:
    """Where the wheel is installed."""
    target = directory / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--target", str(target), str(built)], check=True, timeout=300)
    return target


def version_of(target: Path) -> list[str]:
    """What ``trunkline --version`` says, installed from the wheel alone."""
    program = (
        "import shared.process.cli as cli, sys; print(cli.__file__); sys.argv[1:] = ['--version']; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**_with_native_functions(), "PYTHONPATH": str(target)},
        cwd=target,
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
    name, build = version_of(install(wheel(tmp_path), tmp_path))
    assert name == f"trunkline {__version__}"
    assert build.startswith("native speedups in use")


def test_a_wheel_without_them_works_as_well_and_has_the_dashboard(tmp_path: Path) -> None:
    target = install(wheel(tmp_path, CC="false"), tmp_path)
    name, build = version_of(target)
    assert name == f"trunkline {__version__}"
    assert build.startswith("no native speedups")
    served = fetched_from_gateway(target, tmp_path / "state", sorted(read_files()))
    assert served == {name: file.body for name, file in read_files().items()}


def fetched_from_gateway(target: Path, state: Path, names: list[str]) -> dict[str, bytes]:
    """Files of the dashboard, from a gateway that is installed there and nowhere else."""
    port = free_port()
    listen = ("--listen", f"127.0.0.1:{port}", "--state", str(state))
    program = "import shared.process.cli as cli; cli.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "gateway", *listen],
        env={**_with_native_functions(), "PYTHONPATH": str(target)},
        cwd=target,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until("the gateway is ready", lambda: _answers(f"http://127.0.0.1:{port}/readyz"), START_S)
        found = {}
        for name in names:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ui/{name}", timeout=30) as response:
                found[name] = response.read()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ui/", timeout=30) as response:
            assert response.read() == found["index.html"]
        return found
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
