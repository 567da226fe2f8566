"""The metrics of a real gateway that has answered a real request, as Prometheus reads them."""

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.conftest import MODEL, Site
from tests.support.processes import fetch, until
from tests.support.promtool import promtool


def page(site: Site) -> bytes:
    request = urllib.request.Request(f"{site.gateway.url}/metrics", headers={"x-api-key": site.key})
    with urllib.request.urlopen(request, timeout=10) as response:
        found: bytes = response.read()
        return found


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(text.decode())
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in families
        for each in family.samples
    }


def test_prometheus_finds_nothing_wrong_and_the_request_is_in_it(site: Site) -> None:
    before = samples(page(site))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    fetch(f"{site.base_url}/chat/completions", body=body, key=site.key)
    labels = {"model": MODEL, "route": "chat", "tier": "standard"}
    counted = "trunkline_requests_total", frozenset((labels | {"status": "2xx"}).items())
    timed = "trunkline_request_seconds_count", frozenset(labels.items())
    spent = "trunkline_gpu_seconds_total", frozenset({"model": MODEL}.items())
    until("the request is counted", lambda: samples(page(site)).get(spent, 0) > before.get(spent, 0))
    text = page(site)
    found = samples(text)
    assert found[counted] == before.get(counted, 0) + 1
    assert found[timed] == before.get(timed, 0) + 1
    by_class = {"tenant_class": "everybody", "tier": "standard", "status": "2xx"}
    counted_by_class = "trunkline_tenant_class_request_seconds_count", frozenset(by_class.items())
    assert found[counted_by_class] == before.get(counted_by_class, 0) + 1
    ends = {name: value for (name, _), value in found.items() if "agent_certificate" in name}
    start_s = ends["trunkline_agent_certificate_start_timestamp_seconds"]
    assert start_s < time.time() < ends["trunkline_agent_certificate_end_timestamp_seconds"]
    assert promtool("check", "metrics", stdin=text) == ""
