"""What the doctor takes from an agent's settings."""

import os
from pathlib import Path

import pytest

from agent.diagnosis.host import gateway_url
from shared.process.checks import CheckedHost


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("TRUNKLINE_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("gateway", "url"),
    [
        ("https://gw.example.com", "https://gw.example.com"),
        ("wss://gw.example.com/llm/tunnel", "https://gw.example.com/llm"),
        ("ws://127.0.0.1:8700/", "http://127.0.0.1:8700"),
    ],
)
def test_a_gateway_that_is_named_by_its_tunnel_is_looked_at_as_clients_ask_it(
    tmp_path: Path, gateway: str, url: str
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f'gateway = "{gateway}"\n')
    assert gateway_url(CheckedHost(config=file)) == url


def test_a_gateway_that_no_settings_name_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("drain_s = 1\n")
    assert gateway_url(CheckedHost(config=file)) is None
    file.write_text("drain_s = -1\n")
    assert gateway_url(CheckedHost(config=file)) is None
