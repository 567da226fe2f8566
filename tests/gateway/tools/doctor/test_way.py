"""The way to a gateway whose URL is not in plain ASCII, or has an address of IPv6."""

import socket
import threading

import pytest

from gateway.tools.doctor.way import NoWay, Target, Way
from tests.support.stand_in_gateway import StandIn, stand_in


@pytest.mark.parametrize(
    ("url", "host", "authority", "prefix"),
    [
        ("https://llm.example.com/v1", "llm.example.com", "llm.example.com", ""),
        ("https://llm.example.com:443/a", "llm.example.com", "llm.example.com", "/a"),
        ("http://llm.example.com:8700", "llm.example.com", "llm.example.com:8700", ""),
        (
            "https://b\xfccher.example:1/caf\xe9 x/",
            "xn--bcher-kva.example",
            "xn--bcher-kva.example:1",
            "/caf%C3%A9%20x",
        ),
        ("https://[2001:db8::1]", "2001:db8::1", "[2001:db8::1]", ""),
        ("https://\xfc..b", "\xfc..b", "\xfc..b", ""),
    ],
)
def test_host_and_path_are_as_requests_have_them(url: str, host: str, authority: str, prefix: str) -> None:
    target = Target.of(url)
    assert (target.host, target.authority, target.prefix) == (host, authority, prefix)


def test_a_path_beyond_ascii_is_asked_for() -> None:
    with stand_in(StandIn({"/caf%C3%A9/readyz": {"status": "ready"}})) as there:
        way = Way(Target.of(f"http://127.0.0.1:{there.port}/caf\xe9"))
        with way.request("GET", "/readyz", {}) as response:
            assert response.status == 200


def test_a_proxy_is_asked_for_an_address_of_ipv6_in_brackets() -> None:
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def answer() -> None:
            with proxy.accept()[0] as client:
                asked.append(client.recv(4096))
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        environ = {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.getsockname()[1]}"}
        with pytest.raises(NoWay, match="status 502"):
            Way(Target.of("https://[2001:db8::1]"), environ).open()
        answering.join()
    assert asked[0].startswith(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n")
