"""The chart's values for a private authority and for scaling: who trusts whom, and who asks whom."""

import json
from typing import Any

import pytest

from gateway.runtime.config.sources import load
from gateway.scaling.keda.server import CLASS, MODEL
from tests.support import charts
from tests.support.charts import Manifest, Manifests, containers, environment, named, rendered

_HPA = ("scaling.by=hpa", "agents.l4.scaling.minReplicas=1", "agents.h100.scaling.minReplicas=1")


def _gateway(manifests: Manifests) -> tuple[Manifest, dict[str, Any]]:
    (found,) = ((pod, each) for pod, each in containers(manifests) if each["name"] == "gateway")
    return found


def _agents(manifests: Manifests) -> list[tuple[Manifest, dict[str, Any]]]:
    return [(pod, each) for pod, each in containers(manifests) if each["name"] == "agent"]


def _trusts(pod: Manifest, container: dict[str, Any], variable: str) -> dict[str, Any] | None:
    """The volume from which it has the authority that the variable names."""
    path = environment(container).get(variable)
    if path is None:
        return None
    (mount,) = (each for each in container["volumeMounts"] if path == f"{each['mountPath']}/ca.crt")
    (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
    return {name: value for name, value in volume.items() if name != "name"}


_SECRET = ("tls.mode=secret", "tls.secretName=web")
_OF_CERT_MANAGER = (*_SECRET, "tls.ca.name=web")
_OWN_MAP = (*_SECRET, "tls.ca.kind=ConfigMap", "tls.ca.name=roots", "tls.ca.key=root.pem")


@pytest.mark.parametrize(
    ("settings", "volume"),
    [
        ((), {"configMap": {"name": "t-ca"}}),
        (_SECRET, None),
        (
            _OF_CERT_MANAGER,
            {
                "secret": {
                    "secretName": "web",
                    "defaultMode": 0o444,
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
        ),
        (_OWN_MAP, {"configMap": {"name": "roots", "items": [{"key": "root.pem", "path": "ca.crt"}]}}),
    ],
    ids=["generated", "public", "a Secret's", "a ConfigMap's"],
)
def test_agents_and_gateways_trust_who_signed(
    settings: tuple[str, ...], volume: dict[str, Any] | None
) -> None:
    """An agent has the authority's certificate only: never the key that lies beside it in the Secret."""
    agents = _agents(rendered("agents", settings))
    assert len(agents) == 2
    for pod, container in agents:
        assert _trusts(pod, container, "TRUNKLINE_AGENT_CA_FILE") == volume
        assert [each for each in pod["volumes"] if "secret" in each] == (
            [{"name": "ca", **volume}] if volume and "secret" in volume else []
        )
    pod, gateway = _gateway(rendered("highly-available", settings))
    assert _trusts(pod, gateway, "TRUNKLINE_GATEWAY_CLUSTER__CA_FILE") == volume


def test_an_authority_counts_for_what_ends_tls_in_front_too() -> None:
    given = ("tls.mode=terminated", "agentDefaults.gatewayURL=https://llm.example.com", "tls.ca.name=roots")
    for pod, container in _agents(rendered("agents", given)):
        trusted = _trusts(pod, container, "TRUNKLINE_AGENT_CA_FILE")
        assert trusted is not None
        assert trusted["secret"]["secretName"] == "roots"
    _, gateway = _gateway(rendered("agents", given))
    assert "TRUNKLINE_GATEWAY_CLUSTER__CA_FILE" not in environment(gateway)


def test_prometheus_and_a_gateway_in_front_trust_it() -> None:
    for settings, kind, name in ((_OF_CERT_MANAGER, "Secret", "web"), (_OWN_MAP, "ConfigMap", "roots")):
        manifests = rendered("everything", settings)
        (monitor,) = named(manifests, "ServiceMonitor").values()
        (authority,) = monitor["spec"]["endpoints"][0]["tlsConfig"]["ca"].items()
        assert authority[0].lower() == kind.lower()
        assert authority[1]["name"] == name
        (reference,) = named(manifests, "BackendTLSPolicy")["t"]["spec"]["validation"]["caCertificateRefs"]
        assert (reference["kind"], reference["name"]) == (kind, name)
    manifests = rendered("everything", _SECRET)
    assert named(manifests, "BackendTLSPolicy") == {}, "of a public authority there is nothing to say"
    (monitor,) = named(manifests, "ServiceMonitor").values()
    assert monitor["spec"]["endpoints"][0]["tlsConfig"] == {"serverName": "t.llm.svc"}


def test_keda_asks_the_gateways_for_each_class() -> None:
    manifests = rendered("scaled")
    scaled = named(manifests, "ScaledObject")
    deployments = named(manifests, "Deployment")
    assert {each["spec"]["scaleTargetRef"]["name"] for each in scaled.values()} == set(deployments)
    assert all("replicas" not in each["spec"] for each in deployments.values()), "they are KEDA's"
    asked = {}
    for each in scaled.values():
        (trigger,) = each["spec"]["triggers"]
        assert (trigger["type"], trigger["metricType"]) == ("external-push", "AverageValue")
        asked[trigger["metadata"][CLASS]] = trigger["metadata"]
        assert each["spec"]["minReplicaCount"] == 0
    assert set(asked) == {"l4", "h100"}
    assert {each[MODEL] for each in asked.values()} == {"Qwen/Qwen3-8B"}
    service = named(manifests, "Service")["t-keda"]
    (port,) = service["spec"]["ports"]
    assert {each["scalerAddress"] for each in asked.values()} == {f"t-keda.llm.svc:{port['port']}"}
    pod, gateway = _gateway(manifests)
    assert environment(gateway)["TRUNKLINE_GATEWAY_SCALING__KEDA_LISTEN"] == f"0.0.0.0:{port['targetPort']}"
    assert service["spec"]["type"] == "ClusterIP"
    (policy,) = [each for each in named(manifests, "NetworkPolicy").values() if each["spec"]["ingress"]]
    rule = policy["spec"]["ingress"][-1]
    assert [each["port"] for each in rule["ports"]] == [port["targetPort"]]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}}]
    (authentication,) = named(manifests, "TriggerAuthentication").values()
    given = {
        each["parameter"]: (each["name"], each["key"]) for each in authentication["spec"]["secretTargetRef"]
    }
    assert given == {
        "caCert": ("trunkline-tls", "ca.crt"),
        "tlsClientCert": ("trunkline-keda", "tls.crt"),
        "tlsClientKey": ("trunkline-keda", "tls.key"),
    }
    assert _trusts(pod, gateway, "TRUNKLINE_GATEWAY_SCALING__KEDA_CLIENT_CA") == {
        "secret": {"secretName": "trunkline-keda", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    }


def test_keda_trusts_the_authority_that_the_chart_makes() -> None:
    given = ("tls.mode=generated", "tls.ca.name=", "scaling.keda.clientSecret=")
    manifests = rendered("scaled", given)
    (authentication,) = named(manifests, "TriggerAuthentication").values()
    assert authentication["spec"] == {
        "configMapTargetRef": [{"parameter": "caCert", "name": "t-ca", "key": "ca.crt"}]
    }
    assert "TRUNKLINE_GATEWAY_SCALING__KEDA_CLIENT_CA" not in environment(_gateway(manifests)[1])


def test_behind_something_that_ends_tls_keda_speaks_none() -> None:
    given = ("tls.mode=terminated", "agentDefaults.gatewayURL=https://llm.example.com")
    manifests = rendered("scaled", given)
    assert named(manifests, "TriggerAuthentication") == {}
    for each in named(manifests, "ScaledObject").values():
        (trigger,) = each["spec"]["triggers"]
        assert "enableTLS" not in trigger["metadata"]
        assert "authenticationRef" not in trigger
    assert "TRUNKLINE_GATEWAY_SCALING__KEDA_CERT" not in environment(_gateway(manifests)[1])


def test_keda_can_ask_the_admin_api() -> None:
    manifests = rendered("scaled", ("scaling.by=keda-metrics-api", "scaling.deletionCost=false"))
    (trigger,) = named(manifests, "ScaledObject")["t-agent-l4"]["spec"]["triggers"]
    assert trigger["metadata"] == {
        "url": "https://t.llm.svc:443/admin/scaling/Qwen%2FQwen3-8B?class=l4",
        "valueLocation": "wanted",
        "targetValue": "1",
        "authMode": "bearer",
    }
    (authentication,) = named(manifests, "TriggerAuthentication").values()
    assert authentication["spec"]["secretTargetRef"] == [
        {"parameter": "token", "name": "trunkline-scaling", "key": "key"}
    ]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert set(named(manifests, "Service")) == {"t", "t-pods"}
    pod, gateway = _gateway(manifests)
    assert [name for name in environment(gateway) if "KEDA" in name or name.endswith("COMMAND")] == []
    assert pod["automountServiceAccountToken"] is False


def test_an_autoscaler_of_kubernetes_can_read_the_metric() -> None:
    manifests = rendered("scaled", _HPA)
    scalers = named(manifests, "HorizontalPodAutoscaler")
    assert set(scalers) == {"t-agent-l4", "t-agent-h100"}
    (metric,) = scalers["t-agent-l4"]["spec"]["metrics"]
    assert metric["external"] == {
        "metric": {
            "name": "trunkline_scaling_wanted_replicas",
            "selector": {"matchLabels": {"model": "Qwen/Qwen3-8B", "class": "l4"}},
        },
        "target": {"type": "AverageValue", "averageValue": "1"},
    }
    assert [each["kind"] for each in manifests if each["apiVersion"].startswith("keda")] == []


def test_the_gateway_takes_what_the_chart_says_of_scaling() -> None:
    """And it has the right to write the costs of the pods that it names."""
    manifests = rendered("scaled")
    pod, gateway = _gateway(manifests)
    given = {name: text for name, text in environment(gateway).items() if "SCALING" in name}
    settings = load({}, environment=given).settings
    assert settings.scaling.min_replicas == 0
    assert settings.scaling.first_token_s == 2.5
    assert settings.scaling.classes["l4"].price_hour == 0.8
    assert settings.scaling.classes["h100"].max_replicas == 4
    assert settings.scaling.command == ["python", "/opt/trunkline/deletion_cost.py"]
    account = pod["serviceAccountName"]
    assert pod["automountServiceAccountToken"] is True
    assert set(named(manifests, "ServiceAccount")) == {account}
    (role,) = named(manifests, "Role").values()
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    (binding,) = named(manifests, "RoleBinding").values()
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [(each["name"], each["namespace"]) for each in binding["subjects"]] == [(account, "llm")]
    for deployment in named(manifests, "Deployment").values():
        (agent,) = deployment["spec"]["template"]["spec"]["containers"]
        (name,) = (each for each in agent["env"] if each["name"] == "TRUNKLINE_AGENT_NAME")
        assert name["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}, "or costs name no pods"


def test_without_scaling_nothing_of_it_is_there() -> None:
    for values in ("", "agents", "everything"):
        kinds = {each["kind"] for each in rendered(values)}
        assert kinds & {"ScaledObject", "TriggerAuthentication", "Role", "ServiceAccount"} == set()
        assert "SCALING" not in json.dumps(rendered(values))


@pytest.mark.parametrize(
    ("values", "settings", "said"),
    [
        ("scaled", ("scaling.by=",), "needs scaling.by"),
        ("scaled", ("agents.l4.kind=DaemonSet",), "DaemonSet"),
        ("scaled", ("scaling.by=hpa",), "KEDA scales to none"),
        ("scaled", ("agents.l4.scaling.class=h100",), "a class of its own"),
        ("scaled", ("agents.l4.scaling.class=",), "a class of its own"),
        ("scaled", ("scaling.by=karpenter",), "scaling"),
        ("scaled", ("tls.ca.kind=File",), "kind"),
    ],
)
def test_values_that_cannot_work_are_refused(values: str, settings: tuple[str, ...], said: str) -> None:
    done = charts.template(values, settings)
    assert done.returncode != 0
    assert said in done.stderr


def test_kustomizes_gateways_trust_each_other() -> None:
    """Their names are none that a public authority signs."""
    given = environment(_gateway(charts.built("example"))[1])
    assert given["TRUNKLINE_GATEWAY_CLUSTER__ADDRESS"].startswith("https://$(POD_NAME).trunkline-pods.")
    assert (
        given["TRUNKLINE_GATEWAY_CLUSTER__CA_FILE"]
        == f"{given['TRUNKLINE_GATEWAY_TLS__CERT'].rpartition('/')[0]}/ca.crt"
    )
