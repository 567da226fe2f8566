"""``trunkline bench`` against a whole site, as a user runs it."""

import json
import subprocess
from pathlib import Path

from tests.integration.conftest import MODEL, Site
from tests.support.processes import command


def bench(site: Site, *arguments: str, key: str = "") -> "subprocess.CompletedProcess[str]":
    line = command("bench", site.base_url, "--api-key", key or site.key, *arguments)
    return subprocess.run(line, capture_output=True, text=True, timeout=180)


def test_a_load_is_told_as_a_table_and_as_json(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = (
        "--model",
        MODEL,
        "--concurrency",
        "8",
        "--warmup",
        "0.3",
        "--requests",
        "24",
        "--max-tokens",
        "20",
    )
    body = ("--body", '{"script": {"tokens_per_s": 100}}')
    done = bench(site, *arguments, *body, "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "first token" in done.stdout
    figures = json.loads(file.read_text())
    assert figures["target"]["model"] == MODEL
    assert figures["errors"] == {}
    assert figures["requests"]["right"] == 24
    assert figures["tokens"]["completion"] == 20 * 24
    gaps = figures["gap_s"]  # half of the tokens may come together with others on a busy machine
    assert 0 <= gaps["p50"] <= gaps["p99"]
    assert gaps["p99"] > 0
    assert site.key not in done.stdout + done.stderr + file.read_text()


def test_a_load_of_which_nothing_succeeds_fails_and_says_why(site: Site) -> None:
    arguments = ("--requests", "4", "--concurrency", "2", "--warmup", "0", "--model", "unheard-of")
    done = bench(site, *arguments)
    assert done.returncode == 1
    assert "4 × HTTP 404" in done.stderr
    refused = bench(site, "--requests", "1", key="sk-tl-wrong")
    assert refused.returncode == 1
    assert "HTTP 401" in refused.stderr
