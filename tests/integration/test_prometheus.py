"""A real Prometheus, set up as ``deploy/observe`` shows, reads a real gateway: it can evaluate every rule,
and has what the board asks for."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from shared.process.ports import free_port
from tests.integration.conftest import MODEL, Site
from tests.support import programs
from tests.support.processes import until
from tests.support.promtool import promtool

OBSERVE = Path(__file__).parents[2] / "deploy" / "observe"

EVERY = "500ms"
"""For scrapes and rules."""

NOT_HERE = {
    *("Batches of engines, median and p95", "Loads of models", "Time that loading takes, mean"),
    *("GPU memory", "GPU power", "GPU temperature", "GPU utilisation"),
    *(
        "Budgets used",
        "Deployments that fail",
        "Failures by class of tenants",
        "Prediction error, p90 factor",
    ),
    *("Refused", "Retries, failovers, continuations, broken streams", "Waiting requests"),
}
"""Panels about what need not have been here yet: GPUs, budgets, loads, batches that an engine tells of, and
everything that has gone wrong."""


@contextmanager
def prometheus(site: Site, directory: Path) -> Iterator[str]:
    """Its URL, as long as it runs."""
    promtool("--version")  # which comes with it, and is installed where it is not
    settings = yaml.safe_load((OBSERVE / "prometheus.yml").read_text())
    (job,) = settings["scrape_configs"]
    credentials = directory / "key"
    credentials.write_text(site.key)
    job |= {"scheme": "http", "scrape_interval": EVERY, "scrape_timeout": EVERY}
    job["static_configs"][0]["targets"] = [site.gateway.url.partition("//")[2]]
    job["authorization"]["credentials_file"] = str(credentials)
    settings["global"] = {"evaluation_interval": EVERY}
    settings["rule_files"] = [str(OBSERVE / name) for name in settings["rule_files"]]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                programs.program("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        process.terminate()
        process.wait(30)


def told(url: str) -> Any:
    """What its API says; None while it is being started."""
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            found = json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return None
        pytest.fail(f"{url}: {error.read().decode()}")
    except OSError:
        return None
    assert found["status"] == "success", found
    return found["data"]


def queries() -> dict[str, list[str]]:
    """Those of the board, by the titles of its panels."""
    board = json.loads((OBSERVE / "grafana-dashboard.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    return {
        panel["title"]: [
            target["expr"].replace("$__rate_interval", "5s").replace("$model", ".*")
            for target in panel["targets"]
        ]
        for panel in panels
    }


def ask(site: Site) -> None:
    """A stream, read to its end."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "stream": True}
    headers = {"content-type": "application/json", "x-api-key": site.key}
    url = f"{site.base_url}/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        answer.read()


def test_every_rule_is_evaluated_and_the_boards_panels_have_data(site: Site, tmp_path: Path) -> None:
    with prometheus(site, tmp_path) as url:
        until("it listens", lambda: told(f"{url}/rules") is not None, 60)

        def without_data() -> set[str]:
            ask(site)
            found = {
                title: [told(f"{url}/query?{urllib.parse.urlencode({'query': each})}") for each in exprs]
                for title, exprs in queries().items()
            }
            return {title for title, data in found.items() if not any(each["result"] for each in data)}

        until("the panels have data", lambda: without_data() <= NOT_HERE, 60)

        def rules() -> list[dict[str, Any]]:
            return [rule for group in told(f"{url}/rules")["groups"] for rule in group["rules"]]

        written = yaml.safe_load((OBSERVE / "prometheus-rules.yml").read_text())["groups"]
        count = sum(len(group["rules"]) for group in written)
        until("every rule has been evaluated", lambda: [r["health"] for r in rules()] == ["ok"] * count, 60)
        assert [rule["name"] for rule in rules() if rule.get("state") == "firing"] == []
