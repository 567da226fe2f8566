"""What Helm renders of the chart, and what Kustomize builds."""

import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from tests.support import deploy_tools

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "trunkline"
KUSTOMIZE = DEPLOY / "kustomize"
VALUES = ("", "highly-available", "agents", "scaled", "everything")
"""Files of ``deploy/helm/values``; the first is none."""
FOLDERS = ("base", "example")
"""Of Kustomize."""

Manifest = dict[str, Any]
Manifests = tuple[Manifest, ...]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([deploy_tools.helm(), *arguments], capture_output=True, text=True, timeout=120)


def template(values: str, settings: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """The release ``t`` in the namespace ``llm``, with a file of values and single ones, ``NAME=VALUE``."""
    given = ["--values", str(DEPLOY / "helm" / "values" / f"{values}.yaml")] if values else []
    given += [word for each in settings for word in ("--set", each)]
    return helm("template", "t", str(CHART), "--namespace", "llm", *given)


@cache
def rendered(values: str, settings: tuple[str, ...] = ()) -> Manifests:
    done = template(values, settings)
    assert done.returncode == 0, done.stderr
    return tuple(each for each in yaml.safe_load_all(done.stdout) if each)


@cache
def built(folder: str) -> Manifests:
    command = [deploy_tools.kubectl(), "kustomize", str(KUSTOMIZE / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def all_manifests() -> Iterator[Manifests]:
    """Of every file of values and every folder."""
    yield from (rendered(values) for values in VALUES)
    yield from (built(folder) for folder in FOLDERS)


def named(manifests: Manifests, kind: str) -> dict[str, Manifest]:
    """Those of a kind, by name."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def containers(manifests: Manifests) -> Iterator[tuple[Manifest, dict[str, Any]]]:
    """Our own, with the pods that they are in."""
    for each in manifests:
        if each["kind"] in ("StatefulSet", "Deployment", "DaemonSet"):
            pod = each["spec"]["template"]["spec"]
            yield from ((pod, container) for container in pod["containers"])


def environment(container: dict[str, Any]) -> dict[str, str]:
    """Name → value; nothing where the value is somewhere else."""
    return {each["name"]: each.get("value", "") for each in container["env"]}
