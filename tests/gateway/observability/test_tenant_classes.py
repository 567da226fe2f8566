"""Tenants count under the classes that an operator names, and all others under one more."""

from gateway.observability.metrics import Metrics
from gateway.observability.tenant_classes import tenant_classes

CLASSES = {"paying": ["acme", "corp-*"], "trial": ["trial-*", "corp-*"]}


def test_a_tenant_is_in_the_first_class_that_has_a_pattern_for_it() -> None:
    class_of = tenant_classes(CLASSES)
    assert class_of is not None
    found = [class_of(name) for name in ("acme", "corp-1", "trial-1", "Acme", "stranger")]
    assert found == ["paying", "paying", "trial", "other", "other"]


def test_without_classes_nothing_is_counted_by_them() -> None:
    metrics = Metrics()
    metrics.tenant_class = tenant_classes({})
    metrics.request_finished("chat", "m", 200, 0.1, "standard", "acme")
    assert _counts(metrics) == {}


def test_requests_are_counted_and_timed_by_class_tier_and_status() -> None:
    metrics = Metrics()
    metrics.tenant_class = tenant_classes(CLASSES)
    for tenant, status in (("acme", 200), ("corp-1", 200), ("acme", 503), ("stranger", 200)):
        metrics.request_finished("chat", "m", status, 0.1, "standard", tenant)
    metrics.request_finished("chat", "m", 401, 0.1)
    assert _counts(metrics) == {
        ("paying", "standard", "2xx"): 2.0,
        ("paying", "standard", "5xx"): 1.0,
        ("other", "standard", "2xx"): 1.0,
    }


def _counts(metrics: Metrics) -> dict[tuple[str, str, str], float]:
    return {
        (each.labels["tenant_class"], each.labels["tier"], each.labels["status"]): each.value
        for family in metrics.registry.collect()
        for each in family.samples
        if each.name == "trunkline_tenant_class_request_seconds_count"
    }
