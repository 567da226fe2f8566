"""Objects held against JSON schemas, by a validator that is fetched into ``tests/.cache``."""

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import deploy_tools

_SITE = Path(__file__).parents[1] / ".cache" / "deploy" / "site"
_VALIDATOR = "jsonschema==4.26.0"


@cache
def _library(name: str) -> Any:
    if not (_SITE / "jsonschema").exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
        ]
        done = subprocess.run(
            [*command, "--target", str(_SITE), _VALIDATOR], capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            pytest.skip(f"{_VALIDATOR} cannot be fetched: {done.stderr.strip()[-300:]}")
    if str(_SITE) not in sys.path:
        sys.path.append(str(_SITE))
    return importlib.import_module(name)


def errors(thing: object, schema: dict[str, Any]) -> list[str]:
    """What the schema says against it."""
    validators = _library("jsonschema.validators")
    return _said(validators.validator_for(schema)(schema), thing)


@cache
def _registry() -> Any:
    referencing = _library("referencing")
    definitions = referencing.Resource.from_contents(deploy_tools.kubernetes_definitions())
    return definitions @ referencing.Registry()


def kubernetes_errors(thing: dict[str, Any]) -> list[str] | None:
    """What Kubernetes' own schema says against an object; None if it is of a kind that others define."""
    schema = deploy_tools.kubernetes_schema(thing["kind"], thing["apiVersion"])
    if schema is None:
        return None
    validators = _library("jsonschema.validators")
    return _said(validators.Draft202012Validator(schema, registry=_registry()), thing)


def custom_errors(things: Sequence[dict[str, Any]]) -> list[list[str] | None]:
    """What the validators of Gateway API, KEDA and the Prometheus operator say against each object; None for
    kinds of others."""
    node, home = deploy_tools.custom_resources()
    done = subprocess.run(
        [node, str(Path(__file__).parent / "custom_resources.mjs"), home],
        input=json.dumps(things),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str] | None] = json.loads(done.stdout)
    return found


def _said(validator: Any, thing: object) -> list[str]:
    found = validator.iter_errors(thing)
    return [
        f"{'.'.join(str(step) for step in error.absolute_path)}: {error.message[:300]}" for error in found
    ]
