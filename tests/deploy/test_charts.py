"""The Helm chart and the Kustomize files, rendered by helm and kubectl, held against Kubernetes' schemas."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from agent.config.sources import load
from gateway.domain.surface import FIXED
from shared import __version__
from tests.support import charts, deploy_tools
from tests.support.charts import Manifests, built, containers, environment, named, rendered
from tests.support.deployed_settings import unknown_variables, wrong_words
from tests.support.manifests import custom_errors, kubernetes_errors

_EXTERNAL = {
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "BackendTLSPolicy": "gateway.networking.k8s.io/v1",
    "ScaledObject": "keda.sh/v1alpha1",
    "TriggerAuthentication": "keda.sh/v1alpha1",
}
"""Kinds that others than Kubernetes define, with the versions of them that the chart was written for."""


def test_helm_lints_the_chart() -> None:
    done = charts.helm("lint", "--strict", str(charts.CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", charts.VALUES)
def test_what_helm_renders_is_valid(values: str) -> None:
    _check(rendered(values))


@pytest.mark.parametrize("folder", charts.FOLDERS)
def test_what_kustomize_builds_is_valid(folder: str) -> None:
    _check(built(folder))


def _check(manifests: Manifests) -> None:
    assert len(manifests) >= 4
    for each in manifests:
        found = kubernetes_errors(each)
        if found is None:
            assert _EXTERNAL[each["kind"]] == each["apiVersion"]
        else:
            assert found == [], each["metadata"]["name"]


def test_objects_of_others_are_what_their_projects_take() -> None:
    objects = [
        each for manifests in charts.all_manifests() for each in manifests if each["kind"] in _EXTERNAL
    ]
    assert {each["kind"] for each in objects} == set(_EXTERNAL)
    for each, found in zip(objects, custom_errors(objects), strict=True):
        assert found == [], each["metadata"]["name"]


def test_their_validators_would_find_a_mistake() -> None:
    (route,) = named(rendered("everything"), "HTTPRoute").values()
    (scaled, *_) = named(rendered("scaled"), "ScaledObject").values()
    wrong = [
        {**route, "spec": {**route["spec"], "hostnames": "llm"}},
        {**scaled, "spec": {**scaled["spec"], "minReplicas": 1}},
        {**scaled, "kind": "ScaleObject"},
    ]
    assert all(custom_errors(wrong))
    assert custom_errors([{"apiVersion": "v1", "kind": "Pod"}]) == [None]


def test_the_schemas_would_find_a_mistake() -> None:
    (service,) = [
        each for each in rendered("") if each["metadata"]["name"] == "t" and each["kind"] == "Service"
    ]
    assert kubernetes_errors({**service, "spec": {**service["spec"], "prots": []}})


def test_the_matrix_has_what_it_is_for() -> None:
    assert set(named(rendered(""), "StatefulSet")) == {"t"}
    many = named(rendered("highly-available"), "StatefulSet")["t"]["spec"]
    assert (many["replicas"], many["podManagementPolicy"]) == (3, "Parallel")
    assert set(named(rendered("agents"), "DaemonSet")) == {"t-agent-l4"}
    assert set(named(rendered("agents"), "Deployment")) == {"t-agent-h100"}
    kinds = {each["kind"] for values in ("everything", "scaled") for each in rendered(values)}
    wanted = {"HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "PodDisruptionBudget", *_EXTERNAL}
    assert kinds >= wanted
    assert "replicas" not in named(rendered("everything"), "StatefulSet")["t"]["spec"], "the autoscaler's"


def test_our_containers_set_and_call_what_the_programs_know() -> None:
    seen = set[str]()
    for manifests in charts.all_manifests():
        for _, container in containers(manifests):
            given = environment(container)
            assert unknown_variables(given) == []
            seen |= given.keys()
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
    for pod, container in containers(rendered(values)):
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
    for manifests in charts.all_manifests():
        for pod, container in containers(manifests):
            mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
            assert set(mounts) <= {each["name"] for each in pod["volumes"]} | {"state"}
            given = environment(container)
            for value in given.values():
                if re.match(r"/(run|var)/", value):
                    assert any(value.startswith(mount) for mount in mounts.values()), value
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            if container["name"] == "gateway":
                port = container["ports"][0]["containerPort"]
                assert given["TRUNKLINE_GATEWAY_LISTEN"] == f"0.0.0.0:{port}"
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    asked = container[probe]["httpGet"]
                    assert asked["path"] in FIXED
                    assert asked["port"] == port
                drain = int(given["TRUNKLINE_GATEWAY_DRAIN_S"])
                wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
                assert pod["terminationGracePeriodSeconds"] > drain + wait
            else:
                assert pod["terminationGracePeriodSeconds"] > int(given["TRUNKLINE_AGENT_DRAIN_S"])


def test_services_monitors_and_routes_lead_to_the_gateways() -> None:
    manifests = rendered("everything")
    services = named(manifests, "Service")
    (gateway,) = named(manifests, "StatefulSet").values()
    labels = gateway["spec"]["template"]["metadata"]["labels"]
    assert gateway["spec"]["serviceName"] in services
    for service in services.values():
        assert service["spec"]["selector"].items() <= labels.items()
        assert service["spec"]["ports"][0]["targetPort"] == 8700
    (monitor,) = named(manifests, "ServiceMonitor").values()
    chosen = [
        each
        for each in services.values()
        if monitor["spec"]["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    assert [each["metadata"]["name"] for each in chosen] == ["t"], "or each gateway were scraped twice"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == services["t"]["spec"]["ports"][0]["name"]
    assert endpoint["path"] in FIXED
    (route,) = named(manifests, "HTTPRoute").values()
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "t", "port": services["t"]["spec"]["ports"][0]["port"]}]
    (target,) = named(manifests, "BackendTLSPolicy")["t"]["spec"]["targetRefs"]
    assert (target["kind"], target["name"]) == ("Service", "t")
    (policy,) = [each for each in named(manifests, "NetworkPolicy").values() if each["spec"]["ingress"]]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_the_alerts_job_is_the_monitor_s_whatever_the_release_is_called() -> None:
    manifests = rendered("everything")
    (monitor,) = named(manifests, "ServiceMonitor").values()
    scraped = named(manifests, "Service")["t"]["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    alerts = (charts.DEPLOY / "observe" / "prometheus-rules.yml").read_text()
    assert re.findall(r'job="(\w+)"', alerts) == [scraped]


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
    done = charts.template("", [settings])
    assert done.returncode != 0
    assert said in done.stderr


def test_agents_behind_something_that_ends_tls_need_its_address() -> None:
    given = ["tls.mode=terminated"]
    assert "gatewayURL" in charts.template("agents", given).stderr
    url = "agentDefaults.gatewayURL=https://llm.example.com"
    assert charts.template("agents", [*given, url]).returncode == 0


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((charts.CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_kustomize_base_is_what_the_chart_renders(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.yaml"
    variables = {**os.environ, "HELM": deploy_tools.helm()}
    subprocess.run([str(charts.KUSTOMIZE / "render"), str(fresh)], env=variables, check=True, timeout=120)
    assert fresh.read_text() == (charts.KUSTOMIZE / "base" / "trunkline.yaml").read_text(), (
        "run deploy/kustomize/render"
    )
