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
_PIP_INSTALL = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
_WITHOUT = ("--no-compile", "--no-warn-conflicts")
"""What takes most of its time: most of what is installed is never imported, and nobody else imports it."""


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


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the packages are that the build asks for. The tests are skipped where they cannot be fetched."""
    directory = tmp_path_factory.mktemp("backend")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    _pip_install(directory, *wanted)
    return directory


def built(what: str, directory: Path, backend: Path, **environment: str) -> Path:
    """The ``wheel`` or ``sdist`` in ``directory``, built by the package's own build system from a copy of the
    sources, with the packages that it asks for and no others."""
    subprocess.run(
        [
            *(sys.executable, "-S", "-c"),
            f"from setuptools.build_meta import build_{what}; build_{what}({str(directory)!r})",
        ],
        cwd=source_copy(directory),
        env={**os.environ, "PYTHONPATH": str(backend), **environment},
        capture_output=True,
        timeout=300,
        check=True,
    )
    (found,) = directory.glob("trunkline-*.*")
    return found


def _pip_install(target: Path, *arguments: str, **environment: str) -> None:
    """The test is skipped where packages cannot be fetched."""
    done = subprocess.run(
        [*_PIP_INSTALL, *_WITHOUT, "--target", str(target), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode and "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("the package index cannot be reached, so no wheel can be built")
    assert done.returncode == 0, done.stderr


def install(distribution: Path, target: Path, backend: Path) -> None:
    """From a source distribution, with what was fetched for its build. A C compiler that does not optimise
    takes half the time."""
    options = ("--no-deps", "--no-build-isolation", "--check-build-dependencies")
    _pip_install(target, *options, str(distribution), PYTHONPATH=str(backend), CFLAGS="-O0")


def metadata(wheel: Path) -> Message:
    """What the wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
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


def test_a_source_distribution_is_whole_and_makes_a_wheel_elsewhere(tmp_path: Path, backend: Path) -> None:
    distribution = built("sdist", tmp_path, backend)
    assert distribution.name == f"trunkline-{__version__}.tar.gz"
    with tarfile.open(distribution) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked(_PACKAGES) - held == set()
    assert set(_SOURCES) - held == set()
    assert {name for name in held if name.endswith((".so", ".pyc"))} == set()
    target = tmp_path / "installed"
    install(distribution, target, backend)
    name, build = version_of(target)
    assert name == f"trunkline {__version__}"
    if shutil.which("cc") is not None and (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        assert build.startswith("native speedups in use")


def test_a_wheel_is_whole_and_works_without_native_functions(tmp_path: Path, backend: Path) -> None:
    wheel = built("wheel", tmp_path, backend, CC="false")
    said = metadata(wheel)
    assert (said["Name"], said["Version"]) == ("trunkline", __version__)
    assert set(said.get_all("Provides-Extra", [])) == set(_extras())
    target = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        archive.extractall(target)  # as a wheel is installed of which nothing belongs elsewhere
    assert {name for name in held if name.partition("/")[0].endswith(".data")} == set()
    wanted = {name for name in tracked(_PACKAGES) if Path(name).suffix not in _NOT_INSTALLED}
    assert wanted - held == set()
    assert {f"{package}/py.typed" for package in _PACKAGES} <= held
    assert "agent/engines/torch/demo/model/model.safetensors" in held
    assert {name for name in held if name.startswith(("tests/", "deploy/", "docs/"))} == set()
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
