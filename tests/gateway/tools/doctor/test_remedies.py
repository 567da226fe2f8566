"""Directives for proxies, and which proxy answered."""

import pytest

from gateway.tools.doctor.remedies import PROXIES, REMEDIES, proxy_of, remedy_for


def test_each_check_of_a_proxy_has_a_directive_for_each_proxy() -> None:
    assert {check for check, of in REMEDIES.items() if set(of) != set(PROXIES)} == set()
    assert REMEDIES.keys() == {"websocket-upgrade", "sse-buffering", "idle-cut", "body-limit"}


@pytest.mark.parametrize(
    ("headers", "proxy"),
    [
        ({"server": "nginx/1.22.1"}, "nginx"),
        ({"server": "cloudflare", "cf-ray": "1-FRA"}, "Cloudflare"),
        ({"server": "envoy"}, "Envoy"),
        ({"x-envoy-upstream-service-time": "3"}, "Envoy"),
        ({"via": "1.1 Caddy"}, "Caddy"),
        ({"server": "uvicorn"}, None),
        ({}, None),
    ],
)
def test_a_proxy_is_known_by_what_it_adds(headers: dict[str, str], proxy: str | None) -> None:
    assert proxy_of(headers) == proxy


def test_where_the_proxy_is_not_known_each_is_named() -> None:
    said = remedy_for("body-limit", None)
    assert [line.partition(":")[0] for line in said.splitlines()[1:]] == list(PROXIES)
    assert (
        remedy_for("body-limit", "nginx")
        == "In nginx: client_max_body_size 520m; proxy_request_buffering off;"
    )
