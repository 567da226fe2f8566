"""Where the tunnel is, and which way leads out."""

import pytest

from shared.link.addresses import check_peer_address, is_loopback, proxy_for, tunnel_url

GATEWAY = "wss://gw.example.com/tunnel"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128"}, None),
        ({"ALL_PROXY": "socks5://p:1080"}, "socks5://p:1080"),
        ({"HTTPS_PROXY": "http://a:1", "https_proxy": "http://b:2"}, "http://b:2"),
        ({"HTTPS_PROXY": "http://a:1", "ALL_PROXY": "http://b:2"}, "http://a:1"),
        ({"HTTPS_PROXY": "p:3128"}, "http://p:3128"),
        ({"HTTPS_PROXY": "  "}, None),
    ],
)
def test_the_schemes_own_variable_comes_before_the_general_one(
    environ: dict[str, str], expected: str | None
) -> None:
    assert proxy_for(GATEWAY, environ) == expected


@pytest.mark.parametrize(
    ("exceptions", "direct"),
    [
        ("gw.example.com", True),
        ("example.com", True),
        (".example.com", True),
        ("*.example.com", True),
        ("other.com, example.com", True),
        ("GW.Example.Com", True),
        ("gw.example.com:443", True),
        ("gw.example.com:8443", False),
        ("ample.com", False),
        ("*", True),
        ("10.0.0.0/8", False),
        (",,", False),
    ],
)
def test_what_is_excepted_is_reached_directly(exceptions: str, direct: bool) -> None:
    environ = {"HTTPS_PROXY": "http://p:1", "NO_PROXY": exceptions}
    assert (proxy_for(GATEWAY, environ) is None) is direct


@pytest.mark.parametrize(
    ("url", "direct"),
    [
        ("wss://10.1.2.3/tunnel", True),
        ("wss://11.1.2.3/tunnel", False),
        ("wss://[fd00::1]:8443/tunnel", True),
    ],
)
def test_networks_can_be_excepted(url: str, direct: bool) -> None:
    environ = {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8,fd00::/8"}
    assert (proxy_for(url, environ) is None) is direct


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "a.localhost", "LOCALHOST"]
)
def test_loopback_never_goes_through_a_proxy(host: str) -> None:
    assert is_loopback(host)
    url = f"ws://[{host.strip('[]')}]:1/tunnel" if ":" in host else f"ws://{host}:1/tunnel"
    assert proxy_for(url, {"HTTP_PROXY": "http://p:1", "ALL_PROXY": "http://p:1"}) is None


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost.example.com", "example.com", "", "0.0.0.0"])
def test_nothing_else_is_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("gateway", "tunnel"),
    [
        ("https://gw.example.com", "wss://gw.example.com/tunnel"),
        ("https://gw.example.com:8443/", "wss://gw.example.com:8443/tunnel"),
        ("https://example.com/llm/", "wss://example.com/llm/tunnel"),
        ("wss://gw.example.com/tunnel", "wss://gw.example.com/tunnel"),
        ("http://localhost:8080", "ws://localhost:8080/tunnel"),
        ("http://127.0.0.1:8080", "ws://127.0.0.1:8080/tunnel"),
        ("http://[::1]:8080", "ws://[::1]:8080/tunnel"),
    ],
)
def test_the_tunnel_is_at_the_gateways_url(gateway: str, tunnel: str) -> None:
    assert tunnel_url(gateway) == tunnel


def test_a_path_that_only_begins_like_that_of_clients_is_kept() -> None:
    assert tunnel_url("https://gw/v10") == "wss://gw/v10/tunnel"


@pytest.mark.parametrize("gateway", ["gw.example.com", "https://u:p@x", "http://10.0.0.1:8080"])
def test_what_cannot_be_dialled_is_refused(gateway: str) -> None:
    with pytest.raises(ValueError, match="https://"):
        tunnel_url(gateway)


@pytest.mark.parametrize("address", ["https://gw2.example.com", "https://10.0.0.2:8443"])
def test_a_process_of_the_gateway_may_be_on_another_host(address: str) -> None:
    check_peer_address(address, "https://gw1.example.com")
    check_peer_address("http://127.0.0.1:8702", "http://localhost:8701")


@pytest.mark.parametrize("address", ["http://127.0.0.1:8702", "https://[::1]:8702", "http://localhost"])
def test_an_address_on_the_gateways_own_host_is_none_of_this_one(address: str) -> None:
    with pytest.raises(ValueError, match="on this host"):
        check_peer_address(address, "https://gw1.example.com")
