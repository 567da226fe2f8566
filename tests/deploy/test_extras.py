"""Extras of the package are what the programs' messages name, and bring what the programs import."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

from gateway.app.queues import EXTRAS

_ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"trunkline\[([a-z0-9,]+)\]")
_IMPORTS = {
    "audio": ("av",),
    "forecast": ("numpy",),
    "guided": ("llguidance",),
    "keda": ("grpc", "google.protobuf"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "plots": ("PIL",),
    "postgres": ("psycopg",),
    "previews": ("PIL",),
    "pubsub": ("google.pubsub_v1",),
    "rabbitmq": ("aio_pika",),
    "redis": ("redis",),
    "s3": (),
    "socks": ("python_socks",),
    "sqs": ("aiobotocore",),
    "top": ("textual",),
    "torch": ("accelerate", "jinja2", "psutil", "safetensors", "tokenizers", "torch", "transformers"),
}
"""What the programs import of each."""
_FOR_DEVELOPERS = {"test", "fuzz"}
_DISTRIBUTIONS = {
    "google.protobuf": "protobuf",
    "google.pubsub_v1": "google-cloud-pubsub",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
    "python_socks": "python-socks",
}
"""Of packages that share their first name with others, and of the one that no test needs."""


def _project() -> dict[str, list[str]]:
    """Requirements by extra."""
    settings = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    found: dict[str, list[str]] = settings["project"]["optional-dependencies"]
    return found


@cache
def _sources() -> Mapping[Path, str]:
    """The text of each file of the programs."""
    folders = [_ROOT / package for package in ("gateway", "agent", "shared")]
    return {path: path.read_text() for folder in folders for path in folder.rglob("*.py")}


def _lines_with(word: str) -> str:
    """Of all files: to look for an expression in all lines takes a hundred times as long."""
    files = (text.splitlines() for text in _sources().values() if word in text)
    return "\n".join(line for lines in files for line in lines if word in line)


_distributions_of_packages = cache(packages_distributions)


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", each, maxsplit=1)[0].lower().replace("_", "-") for each in requirements}


def test_each_extra_has_a_row_here() -> None:
    assert set(_project()) - _FOR_DEVELOPERS == set(_IMPORTS)


def test_every_extra_that_is_named_anywhere_exists() -> None:
    pages = [_ROOT / "README.md", *(_ROOT / "docs").glob("*.md"), *(_ROOT / "deploy").rglob("*")]
    shown = {path: path.read_text() for path in pages if path.suffix in (".py", ".md", ".toml")}
    texts = {**_sources(), **shown}
    named = {extra for text in texts.values() for names in _NAMED.findall(text) for extra in names.split(",")}
    assert {"torch", "postgres", "redis", "otel"} <= named
    assert named | set(EXTRAS.values()) <= set(_project())


@pytest.mark.parametrize("extra", _IMPORTS)
def test_the_programs_import_what_an_extra_brings(extra: str) -> None:
    installed = _distributions_of_packages()
    wanted = _names(_project()[extra])
    for name in _IMPORTS[extra]:
        found = _DISTRIBUTIONS.get(name)
        provided = {each.lower().replace("_", "-") for each in ([found] if found else installed[name])}
        assert provided & wanted, f"{name} is not of trunkline[{extra}]"
        said = rf'^\s*(from|import) {re.escape(name)}\b|["(]{re.escape(name)}[")]'
        parts = name.rpartition(".")
        text = _lines_with(parts[2])
        inside = rf"^\s*from {re.escape(parts[0])} import .*\b{parts[2]}\b" if parts[0] else said
        if name != "python_socks":  # the WebSocket library imports it
            assert re.search(f"{said}|{inside}", text, re.MULTILINE), f"nothing imports {name}"


def test_the_socks_extra_is_what_the_websocket_library_imports() -> None:
    client = Path(str(distribution("websockets").locate_file("websockets/asyncio/client.py")))
    assert "from python_socks" in client.read_text()


def test_files_in_s3_need_no_extra() -> None:
    settings = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    assert "obstore" in _names(settings["project"]["dependencies"])
    assert _project()["s3"] == []
