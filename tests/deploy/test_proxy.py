"""The files of ``deploy/proxy`` say what ``trunkline doctor`` recommends, and fit the gateway's limits."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.runtime.config.settings import Settings
from gateway.tools.doctor.remedies import PROXIES, REMEDIES
from shared.protocol.limits import DEAD_AFTER_S
from tests.support.front_proxies import FILES, KINDS, Addresses, ProxyKind, configured

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "proxies.md"
_MIB = 2**20

_DIRECTIVES = {
    "nginx": r"\b[a-z_]+ [^;]+(?=;)",
    "HAProxy": r"\btimeout \w+ \w+|\bmode http\b|\balpn \S+",
    "Envoy": r"\b[a-z_]+: (?:\d+s|\[\{.*?\}\])",
    "Traefik": r"\b[A-Za-z]+: \d+\w+",
    "Caddy": r"\b(?:flush_interval|[a-z_]+_timeout|read_timeout|max_size) [\w-]+",
}
"""What of a remedy is to be written as it stands."""
_NOT_THERE = {
    "nginx": ("proxy_ignore_headers", "proxy_buffering on", "gzip on"),
    "HAProxy": ("http-buffer-request", "compression", "del-header", "send-proxy"),
    "Envoy": ("http.buffer", "compressor"),
    "Traefik": ("buffering:", "compress:"),
    "Caddy": ("encode", "header_up"),
}
_LONGEST_BODY = {
    "nginx": (r"client_max_body_size (\d+)m;", _MIB),
    "HAProxy": (r"content-length\) gt (\d+) ", 1),
    "Caddy": (r"max_size (\d+)MB", 10**6),
}


def _file(kind: ProxyKind) -> str:
    """What the proxy reads of its files, without comments, in one line."""
    lines = "\n".join((FILES / file).read_text() for file in kind.files).splitlines()
    return " ".join(" ".join(line.partition("# ")[0] for line in lines).split())


def _recommended(proxy: str) -> Iterator[str]:
    for of in REMEDIES.values():
        yield from re.findall(_DIRECTIVES[proxy], of[proxy])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_file_has_every_directive_that_the_doctor_recommends(kind: ProxyKind) -> None:
    wanted, text = list(_recommended(kind.name)), _file(kind)
    assert len(wanted) >= 3
    assert [directive for directive in wanted if directive not in text] == []
    assert [word for word in _NOT_THERE[kind.name] if word in text] == []


def test_there_is_a_file_for_each_proxy_that_the_doctor_knows() -> None:
    assert {kind.name for kind in KINDS} | {"Cloudflare"} == set(PROXIES)
    named = {file for kind in KINDS for file in kind.files} | {"cloudflare.md"}
    there = {str(path.relative_to(FILES)) for path in FILES.rglob("*") if path.is_file()}
    assert there == named
    page = _PAGE.read_text()
    assert [file for file in named if f"deploy/proxy/{file}" not in page] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_limits_of_a_file_are_beyond_those_of_the_gateway(kind: ProxyKind) -> None:
    """So it is the gateway that refuses and ends, and says why."""
    settings, text = Settings(), _file(kind)
    silences = [int(found) for found in re.findall(r"\b(\d{4})s\b", text)]
    longest_s = settings.queue.max_wait_s + settings.dispatch.total_s
    assert all(silence > longest_s for silence in silences)
    assert longest_s > DEAD_AFTER_S
    if kind.name in _LONGEST_BODY:
        pattern, unit = _LONGEST_BODY[kind.name]
        (longest,) = re.findall(pattern, text)
        assert int(longest) * unit > max(settings.jobs.file_bytes + _MIB, settings.http.body_bytes)
    assert "/metrics" in text


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_operator_finds_every_example_value_to_replace(kind: ProxyKind, tmp_path: Path) -> None:
    texts = configured(kind, Addresses(8080, 8443, (8701, 8702), tmp_path))
    left = re.findall(r"example\.com|/etc/trunkline|10\.0\.0\.1[12]", "\n".join(texts))
    assert left == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_file_says_what_each_gateway_has_to_be_told(kind: ProxyKind) -> None:
    text = "\n".join((FILES / file).read_text() for file in kind.files)
    assert "behind_tls_terminator = true" in text
    assert 'trusted_proxies = ["10.0.0.1/32"]' in text
