"""The Helm chart and the Kustomize files, rendered by helm and kubectl, held against Kubernetes' schemas."""

import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from agent.config.sources import load
from gateway.domain.surface import FIXED
from shared import __version__
from tests.support import deploy_tools
from tests.support.deployed_settings import unknown_variables, wrong_words
from tests.support.manifests import kubernetes_errors

_DEPLOY = Path(__file__).parents[2] / "deploy"
_CHART = _DEPLOY / "helm" / "trunkline"
_KUSTOMIZE = _DEPLOY / "kustomize"
_VALUES = ("", "highly-available", "agents", "everything")
_EXTERNAL = {
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "BackendTLSPolicy": "gateway.networking.k8s.io/v1",
}
"""Kinds that others than Kubernetes define, with the versions of them that the chart was written for."""

Manifest = dict[str, Any]


def _helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([deploy_tools.helm(), *arguments], capture_output=True, text=True, timeout=120)


@cache
def rendered(values: str) -> tuple[Manifest, ...]:
    given = ["--values", str(_DEPLOY / "helm" / "values" / f"{values}.yaml")] if values else []
    done = _helm("template", "t", str(_CHART), "--namespace", "llm", *given)
    assert done.returncode == 0, done.stderr
    return tuple(each for each in yaml.safe_load_all(done.stdout) if each)


@cache
def built(folder: str) -> tuple[Manifest, ...]:
    command = [deploy_tools.kubectl(), "kustomize", str(_KUSTOMIZE / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def _named(manifests: tuple[Manifest, ...], kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def _all() -> Iterator[tuple[Manifest, ...]]:
    yield from (rendered(values) for values in _VALUES)
    yield from (built(folder) for folder in ("base", "example"))


def _containers(manifests: tuple[Manifest, ...]) -> Iterator[tuple[Manifest, dict[str, Any]]]:
    """Our own, with the pods that they are in."""
    for each in manifests:
        if each["kind"] in ("StatefulSet", "Deployment", "DaemonSet"):
            pod = each["spec"]["template"]["spec"]
            yield from ((pod, container) for container in pod["containers"])


def test_helm_lints_the_chart() -> None:
    done = _helm("lint", "--strict", str(_CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", _VALUES)
def test_what_helm_renders_is_valid(values: str) -> None:
    _check(rendered(values))


@pytest.mark.parametrize("folder", ["base", "example"])
def test_what_kustomize_builds_is_valid(folder: str) -> None:
    _check(built(folder))


def _check(manifests: tuple[Manifest, ...]) -> None:
    assert len(manifests) >= 4
    for each in manifests:
        found = kubernetes_errors(each)
        if found is None:
            assert _EXTERNAL[each["kind"]] == each["apiVersion"]
        else:
            assert found == [], each["metadata"]["name"]


def test_the_schemas_would_find_a_mistake() -> None:
    (service,) = [
        each for each in rendered("") if each["metadata"]["name"] == "t" and each["kind"] == "Service"
    ]
    assert kubernetes_errors({**service, "spec": {**service["spec"], "prots": []}})


def test_the_matrix_has_what_it_is_for() -> None:
    assert set(_named(rendered(""), "StatefulSet")) == {"t"}
    many = _named(rendered("highly-available"), "StatefulSet")["t"]["spec"]
    assert (many["replicas"], many["podManagementPolicy"]) == (3, "Parallel")
    assert set(_named(rendered("agents"), "DaemonSet")) == {"t-agent-l4"}
    assert set(_named(rendered("agents"), "Deployment")) == {"t-agent-h100"}
    kinds = {each["kind"] for each in rendered("everything")}
    wanted = {"HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "PodDisruptionBudget", *_EXTERNAL}
    assert kinds >= wanted
    assert "replicas" not in _named(rendered("everything"), "StatefulSet")["t"]["spec"], "the autoscaler's"


def test_our_containers_set_and_call_what_the_programs_know() -> None:
    seen = set[str]()
    for manifests in _all():
        for _, container in _containers(manifests):
            environment = {each["name"]: each.get("value", "") for each in container["env"]}
            assert unknown_variables(environment) == []
            seen |= environment.keys()
            assert wrong_words([word for word in container["args"] if not word.isdigit()]) == []
    assert {"TRUNKLINE_GATEWAY_CLUSTER__ADDRESS", "TRUNKLINE_AGENT_ENGINE"} <= seen


def test_a_variable_or_an_option_that_nobody_knows_would_be_found() -> None:
    assert unknown_variables({"TRUNKLINE_GATEWAY_LOG__STILE": "", "TRUNKLINE_AGENT_X": "", "HOME": ""}) == [
        "TRUNKLINE_GATEWAY_LOG__STILE",
        "TRUNKLINE_AGENT_X",
    ]
    assert wrong_words(["agent", "--gatway", "x"]) == ["--gatway"]
    assert wrong_words(["agnet"]) == ["agnet"]


@pytest.mark.parametrize("values", ["agents", "everything"])
def test_the_agent_takes_its_environment(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for pod, container in _containers(rendered(values)):
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        if container["name"] == "agent":
            with monkeypatch.context() as patch:
                for name in [name for name in os.environ if name.startswith("TRUNKLINE_AGENT_")]:
                    patch.delenv(name)
                for name, value in given.items():
                    patch.setenv(name, value.replace("$(NODE_NAME)", "node"))
                settings = load({}, None)
            (engine,) = settings.engines
            (sidecar,) = pod["initContainers"]
            assert sidecar["restartPolicy"] == "Always", "it begins before the agent and ends after it"
            assert engine.url == f"http://127.0.0.1:{sidecar['ports'][0]['containerPort']}"
            assert engine.protocol == ("kserve" if values == "everything" else "openai")
            assert settings.gateway == "https://t.llm.svc"


def test_probes_ports_and_mounts_fit_together() -> None:
    for manifests in _all():
        for pod, container in _containers(manifests):
            mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
            assert set(mounts) <= {each["name"] for each in pod["volumes"]} | {"state"}
            environment = {each["name"]: each.get("value", "") for each in container["env"]}
            for value in environment.values():
                if re.match(r"/(run|var)/", value):
                    assert any(value.startswith(mount) for mount in mounts.values()), value
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            if container["name"] == "gateway":
                (port,) = (each["containerPort"] for each in container["ports"])
                assert environment["TRUNKLINE_GATEWAY_LISTEN"] == f"0.0.0.0:{port}"
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    asked = container[probe]["httpGet"]
                    assert asked["path"] in FIXED
                    assert asked["port"] == port
                drain = int(environment["TRUNKLINE_GATEWAY_DRAIN_S"])
                wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
                assert pod["terminationGracePeriodSeconds"] > drain + wait
            else:
                assert pod["terminationGracePeriodSeconds"] > int(environment["TRUNKLINE_AGENT_DRAIN_S"])


def test_services_monitors_and_routes_lead_to_the_gateways() -> None:
    manifests = rendered("everything")
    services = _named(manifests, "Service")
    (gateway,) = _named(manifests, "StatefulSet").values()
    labels = gateway["spec"]["template"]["metadata"]["labels"]
    assert gateway["spec"]["serviceName"] in services
    for service in services.values():
        assert service["spec"]["selector"].items() <= labels.items()
        assert service["spec"]["ports"][0]["targetPort"] == 8700
    (monitor,) = _named(manifests, "ServiceMonitor").values()
    chosen = [
        each
        for each in services.values()
        if monitor["spec"]["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    assert [each["metadata"]["name"] for each in chosen] == ["t"], "or each gateway were scraped twice"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == services["t"]["spec"]["ports"][0]["name"]
    assert endpoint["path"] in FIXED
    (route,) = _named(manifests, "HTTPRoute").values()
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "t", "port": services["t"]["spec"]["ports"][0]["port"]}]
    (target,) = _named(manifests, "BackendTLSPolicy")["t"]["spec"]["targetRefs"]
    assert (target["kind"], target["name"]) == ("Service", "t")
    (policy,) = [each for each in _named(manifests, "NetworkPolicy").values() if each["spec"]["ingress"]]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("gateway.replicas=2", "set store.url"),
        ("autoscaling.enabled=true", "set store.url"),
        ("tls.mode=secret", "needs tls.secretName"),
        ("tls.mode=none", "tls"),
        ("gateway.replcas=2", "replcas"),
        ("agents.x.engine.image=i,agents.x.engine.port=1", "joinSecret"),
        ("agentDefaults.gatewayURL=http://far", "gatewayURL"),
    ],
)
def test_values_that_cannot_work_are_refused(settings: str, said: str) -> None:
    done = _helm("template", "t", str(_CHART), "--set", settings)
    assert done.returncode != 0
    assert said in done.stderr


def test_agents_behind_something_that_ends_tls_need_its_address() -> None:
    given = ["--values", str(_DEPLOY / "helm/values/agents.yaml"), "--set", "tls.mode=terminated"]
    assert "gatewayURL" in _helm("template", "t", str(_CHART), *given).stderr
    url = "agentDefaults.gatewayURL=https://llm.example.com"
    assert _helm("template", "t", str(_CHART), *given, "--set", url).returncode == 0


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((_CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_kustomize_base_is_what_the_chart_renders(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.yaml"
    environment = {**os.environ, "HELM": deploy_tools.helm()}
    subprocess.run([str(_KUSTOMIZE / "render"), str(fresh)], env=environment, check=True, timeout=120)
    assert fresh.read_text() == (_KUSTOMIZE / "base" / "trunkline.yaml").read_text(), (
        "run deploy/kustomize/render"
    )
