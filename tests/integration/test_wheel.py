"""The wheel and the source distribution: built, installed and run, with a C compiler and without one."""

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from gateway.api.ui.files import read_files
from shared import __version__
from shared.process.ports import free_port
from tests.support.processes import START_S, until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
_SOURCES = ("pyproject.toml", "README.md", "LICENSE")
_PACKAGES = ("gateway", "agent", "shared")
_NOT_INSTALLED = {".c", ".h"}
_LEFT_BY_BUILDS = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "*.egg-info")
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def source_copy(directory: Path) -> Path:
    """A copy of the sources, as from a fresh clone."""
    sources = directory / "sources"
    sources.mkdir()
    for name in _PACKAGES:
        shutil.copytree(ROOT / name, sources / name, ignore=_LEFT_BY_BUILDS)
    for name in _SOURCES:
        shutil.copy(ROOT / name, sources)
    return sources


def tracked(folders: tuple[str, ...]) -> set[str]:
    """The files of the repository in those folders, without what running and building leaves there."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    left = {".pyc", ".so", ".pyd"}
    return {
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.suffix not in left and not any(part.endswith(".egg-info") for part in path.parts)
    }


def source_distribution(directory: Path) -> Path:
    """Built by the package's own build system, from a copy of the sources."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    backend = directory / "backend"
    _pip("install", "--target", str(backend), *wanted)
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"from setuptools.build_meta import build_sdist; build_sdist({str(directory)!r})",
        ],
        cwd=source_copy(directory),
        env={**os.environ, "PYTHONPATH": str(backend)},
        capture_output=True,
        timeout=300,
        check=True,
    )
    (built,) = directory.glob("trunkline-*.tar.gz")
    return built


def wheel(directory: Path, sources: Path, **environment: str) -> Path:
    """Built from a folder with the sources or from a source distribution."""
    _pip("wheel", "--no-deps", "--wheel-dir", str(directory), str(sources), **environment)
    (built,) = directory.glob("trunkline-*.whl")
    return built


def _pip(*arguments: str, **environment: str) -> None:
    """Runs it; what it installs is compiled when it is imported, most of it never. The test is skipped where
    packages cannot be fetched."""
    done = subprocess.run(
        [*_PIP, *arguments],
        env={**os.environ, "PIP_NO_COMPILE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode and "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("the package index cannot be reached, so no wheel can be built")
    assert done.returncode == 0, done.stderr


def install(built: Path, directory: Path) -> Path:
    """Where the wheel is installed."""
    target = directory / "installed"
    _pip("install", "--no-deps", "--target", str(target), str(built))
    return target


def metadata(built: Path) -> Message:
    """What the wheel says of itself."""
    with zipfile.ZipFile(built) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


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


def test_a_source_distribution_is_whole_and_makes_a_wheel_elsewhere(tmp_path: Path) -> None:
    built = source_distribution(tmp_path)
    assert built.name == f"trunkline-{__version__}.tar.gz"
    with tarfile.open(built) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked(_PACKAGES) - held == set()
    assert set(_SOURCES) - held == set()
    assert {name for name in held if name.endswith((".so", ".pyc"))} == set()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = install(wheel(elsewhere, built), elsewhere)
    name, build = version_of(target)
    assert name == f"trunkline {__version__}"
    if shutil.which("cc") is not None and (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        assert build.startswith("native speedups in use")


def test_a_wheel_is_whole_and_works_without_native_functions(tmp_path: Path) -> None:
    built = wheel(tmp_path, source_copy(tmp_path), CC="false")
    said = metadata(built)
    assert (said["Name"], said["Version"]) == ("trunkline", __version__)
    assert set(said.get_all("Provides-Extra", [])) == set(_extras())
    with zipfile.ZipFile(built) as archive:
        held = set(archive.namelist())
    wanted = {name for name in tracked(_PACKAGES) if Path(name).suffix not in _NOT_INSTALLED}
    assert wanted - held == set()
    assert {f"{package}/py.typed" for package in _PACKAGES} <= held
    assert "agent/engines/torch/demo/model/model.safetensors" in held
    assert {name for name in held if name.startswith(("tests/", "deploy/", "docs/"))} == set()
    target = install(built, tmp_path)
    name, build = version_of(target)
    assert name == f"trunkline {__version__}"
    assert build.startswith("no native speedups")
    served = fetched_from_gateway(target, tmp_path / "state", sorted(read_files()))
    assert served == {name: file.body for name, file in read_files().items()}


def _extras() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return sorted(settings["project"]["optional-dependencies"])


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
