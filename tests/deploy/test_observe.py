"""What ``deploy/observe`` asks for exists, and every alert has its place in the runbook."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]
from grafana_foundation_sdk.cog.encoder import JSONEncoder  # type: ignore[import-not-found, unused-ignore]
from grafana_foundation_sdk.cog.plugins import register_default_plugins  # type: ignore[import-not-found, unused-ignore]
from grafana_foundation_sdk.models.dashboard import Dashboard  # type: ignore[import-not-found, unused-ignore]

from gateway.app.tracing import span_figures
from gateway.dispatch.region_gate import region_figures
from gateway.observability.gauges import families
from gateway.observability.metrics import Metrics
from shared.process.tracing.conventions import SERVER_METRICS
from shared.process.tracing.export import SpanExporter
from tests.support.promtool import promtool

_ROOT = Path(__file__).parents[2]
_OBSERVE = _ROOT / "deploy" / "observe"
_RULES = _OBSERVE / "prometheus-rules.yml"
_RUNBOOK = _ROOT / "docs" / "runbook.md"
_NAME = re.compile(r"\btrunkline[_:][a-z0-9_:]+")
_SECTION = re.compile(r"^## (\w+)\n\n(.+?)(?=^## |\Z)", re.M | re.S)


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(_RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def there() -> set[str]:
    """The names of all samples that a gateway exposes, and of what the rules record."""
    exporter = SpanExporter(lambda: pytest.fail("nothing is sent"), 1)
    found = {rule["record"] for rule in rules() if "record" in rule}
    of_owners = (*span_figures(exporter), *region_figures({}, {}, {}))
    for family in (*Metrics().registry.collect(), *families(of_owners)):
        if family.type == "histogram":
            found |= {f"{family.name}_{part}" for part in ("bucket", "count", "sum")}
        else:
            found.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return found


def test_every_rule_asks_for_metrics_that_exist() -> None:
    asked = {name for rule in rules() for name in _NAME.findall(rule["expr"])}
    assert len(asked) > 25
    assert asked - there() == set()


def test_every_panel_asks_for_metrics_that_exist() -> None:
    board = json.loads((_OBSERVE / "grafana-dashboard.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    asked = [set(_NAME.findall(target["expr"])) for panel in panels for target in panel["targets"]]
    variables = {name for each in board["templating"]["list"] for name in _NAME.findall(str(each["query"]))}
    assert len(panels) > 20
    assert all(asked)
    assert set().union(variables, *asked) - there() == set()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def lost(before: Any, after: Any, place: str = "") -> list[str]:
    """The places in ``before`` that ``after`` lacks, or has something else at."""
    if isinstance(before, dict) and isinstance(after, dict):
        missing = [f"{place}.{name}" for name in before.keys() - after.keys()]
        both = before.keys() & after.keys()
        return missing + [
            each for name in both for each in lost(before[name], after[name], f"{place}.{name}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [each for index, (old, new) in pairs for each in lost(old, new, f"{place}[{index}]")]
    return [] if before == after else [place]


def through_grafana(board: dict[str, Any]) -> Any:
    """The board as Grafana's own types read it, boards, panels and queries: without what they do not know."""
    register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))


def test_the_board_has_only_fields_that_grafana_knows() -> None:
    board = json.loads((_OBSERVE / "grafana-dashboard.json").read_text())
    assert lost(board, through_grafana(board)) == []
    panel = next(panel for panel in board["panels"] if panel["type"] == "timeseries")
    wrong = (board, panel, panel["gridPos"], panel["options"]["legend"], panel["targets"][0])
    for each in (*wrong, panel["fieldConfig"]["defaults"]["custom"]):
        each["lineWdith"] = 1
    assert len(lost(board, through_grafana(board))) == 6, "a misspelt field is found wherever it is"


def test_every_alert_has_a_section_that_begins_with_a_check_of_the_doctor() -> None:
    sections = dict(_SECTION.findall(_RUNBOOK.read_text()))
    checks = set(re.findall(r"^\| `([a-z0-9-]+)` \|", (_ROOT / "docs" / "doctor.md").read_text(), re.M))
    assert sections.keys() == {alert["alert"] for alert in alerts()}
    for name, text in sections.items():
        first = re.match(r"`trunkline doctor`, check `([a-z-]+)`, ", text)
        assert first is not None, name
        assert first[1] in checks, name
    for alert in alerts():
        assert alert["annotations"]["runbook_url"] == f"docs/runbook.md#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in ("page", "ticket")


def test_every_alert_is_tested_to_fire() -> None:
    tested = (_OBSERVE / "prometheus-rules-test.yml").read_text()
    fired = set(re.findall(r'alertname="(\w+)"', tested))
    assert fired == {alert["alert"] for alert in alerts()}


def test_prometheus_can_read_the_rules_and_they_alert_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(_RULES))
    assert "SUCCESS" in promtool("test", "rules", str(_OBSERVE / "prometheus-rules-test.yml"))


def test_the_collector_gives_metrics_the_names_of_the_conventions() -> None:
    collector = yaml.safe_load((_OBSERVE / "otel-collector.yaml").read_text())
    renamed = {
        each["new_name"]: each["include"]
        for each in collector["processors"]["metricstransform"]["transforms"]
    }
    assert renamed == SERVER_METRICS
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(collector[kind])
