"""Proxies, the gateway behind them, and the table of what was found."""

from collections.abc import Iterator

import pytest

from tests.integration.proxies import places
from tests.integration.proxies.places import FULL, Gateways, Place, place
from tests.support.front_proxies import HAPROXY, KINDS, NGINX, ProxyKind, ProxyNotInstalled

FOUND: dict[str, dict[str, str]] = {}
"""Check → proxy → what came of it."""


@pytest.fixture(scope="package")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    yield from places.gateways(tmp_path_factory.mktemp("behind"))


@pytest.fixture(scope="package", params=KINDS if FULL else (NGINX, HAPROXY), ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> ProxyKind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="package")
def front(behind: Gateways, kind: ProxyKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One for all checks of a proxy."""
    directory = tmp_path_factory.mktemp(kind.name.lower())
    try:
        with place(behind, kind, directory) as made:
            yield made
    except ProxyNotInstalled as reason:
        pytest.skip(str(reason))


@pytest.fixture
def found(request: pytest.FixtureRequest, kind: ProxyKind) -> Iterator[list[str]]:
    """What a check says of itself for the table; what fails is said to have failed."""
    words: list[str] = []
    row = FOUND.setdefault(request.node.originalname.removeprefix("test_"), {})
    row[kind.name] = "FAILED"
    yield words
    if words:
        row[kind.name] = words[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table, in a full run."""
    if not FULL or not FOUND:
        return
    terminalreporter.section("proxy × check")
    names = [kind.name for kind in KINDS]
    terminalreporter.write_line("| check | " + " | ".join(names) + " |")
    terminalreporter.write_line("| --- |" + " --- |" * len(names))
    for check, row in FOUND.items():
        cells = " | ".join(row.get(name, "–") for name in names)
        terminalreporter.write_line(f"| {check.replace('_', ' ')} | {cells} |")
