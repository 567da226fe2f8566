"""Which URLs and addresses webhooks may have."""

from ipaddress import ip_network

import pytest

from gateway.domain.webhook_addresses import (
    WebhookRefused,
    WebhookRules,
    kind_refused,
    read_webhook_url,
)

ANY = WebhookRules()

REFUSED = """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 169.254.0.1
    169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.170 192.0.2.1 192.31.196.1 192.52.193.1
    192.88.99.1 192.168.0.1 192.168.255.255 192.175.48.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1
    224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 :: ::1 ::2 ::8.8.8.8 ::127.0.0.1 ::ffff:127.0.0.1
    ::ffff:8.8.8.8 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1 64:ff9b::127.0.0.1 64:ff9b::8.8.8.8 64:ff9b:1::1
    64:ff9b:1:ffff::a00:1 100::1 100:0:0:1::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1
    2001:10::1 2001:20::1 2001:db8::1 2001:1ff::1 2002:7f00:1:: 2002:a00:1::1 2002:808:808::1
    2620:4f:8000::1 3fff::1 3fff:fff::1 5f00::1 4000::1 8000::1 fc00::1 fd00:ec2::254 fdff::1 fe80::1
    fe80::1%eth0 febf::1 fec0::1 ff02::1 ff0e::1 1::1 2606:4700::5efe:7f00:1 2606:4700::200:5efe:a00:1
    localhost 127.1 2130706433 0x7f000001 0177.0.0.1 1.2.3 1.2.3.4.5 ::g
""".split()  # noqa: SIM905 (a table)

ALLOWED = """
    1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1
    169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.0.3.0 192.167.255.255 192.169.0.0
    198.17.255.255 198.20.0.0 198.51.99.255 203.0.112.1 223.255.255.255 2001:200::1 2001:4860:4860::8888
    2003::1 2606:4700:4700::1111 2a00:1450:4001:82a::200e 3ffe::1
""".split()  # noqa: SIM905 (a table)


@pytest.mark.parametrize("address", REFUSED)
def test_nothing_is_sent_to_addresses_that_are_not_the_internets(address: str) -> None:
    assert kind_refused(address) is not None


@pytest.mark.parametrize("address", ALLOWED)
def test_receivers_on_the_internet_are_reached(address: str) -> None:
    assert kind_refused(address) is None


def test_networks_that_the_operator_names_are_reached_and_no_others() -> None:
    networks = (ip_network("10.1.0.0/16"), ip_network("fd00:1::/32"), ip_network("127.0.0.1/32"))
    reached = ("10.1.2.3", "fd00:1::5", "127.0.0.1", "8.8.8.8")
    assert [kind_refused(each, networks) for each in reached] == [None] * 4
    for other in ("10.2.0.1", "fd00:2::5", "127.0.0.2", "::ffff:10.1.2.3", "::ffff:127.0.0.1", "::1"):
        assert kind_refused(other, networks) is not None
    assert kind_refused("fe80::1%1", (ip_network("fe80::/10"),)) is not None


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://a.example", ("https", "a.example", 443, "a.example", "/")),
        ("http://a.example/x?y=1&z", ("http", "a.example", 80, "a.example", "/x?y=1&z")),
        ("https://A.example:8443/", ("https", "a.example", 8443, "A.example:8443", "/")),
        ("https://[2606:4700::1]:443/h", ("https", "2606:4700::1", 443, "[2606:4700::1]:443", "/h")),
        ("https://a.example?q", ("https", "a.example", 443, "a.example", "/?q")),
    ],
)
def test_a_url_is_taken_apart(url: str, parts: tuple[object, ...]) -> None:
    found = read_webhook_url(url, ANY)
    assert (found.scheme, found.host, found.port, found.authority, found.path) == parts


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "write https"),
        ("a.example/x", "write https"),
        ("ftp://a.example/", "write https"),
        ("file:///etc/passwd", "write https"),
        ("gopher://a.example/", "write https"),
        ("https:///x", "write https"),
        ("https://a.example/a b", "write https"),
        ("https://a.example/\r\nx: y", "write https"),
        ("https://a.example/\t", "write https"),
        ("https://bücher.example/", "write https"),
        ("https://user@a.example/", "no user"),
        ("https://user:secret@a.example/", "no user"),
        ("https://@a.example/", "no user"),
        ("https://8.8.8.8@127.0.0.1/", "no user"),
        ("https://a.example/#here", "no fragment"),
        ("https://a.example/#", "no fragment"),
        ("https://a.example:99999/", "no URL"),
        ("https://a.example:x/", "no URL"),
        ("https://[::1/", "no URL"),
        ("https://a.example:22/", "port 22"),
        ("https://a.example:0/", "port 0"),
        ("https://a.example:25/", "port 25"),
        ("https://a.example/" + "x" * 2000, "at most 2000"),
    ],
)
def test_what_can_never_be_a_webhook_is_refused_with_a_reason(url: str, why: str) -> None:
    with pytest.raises(WebhookRefused, match=why) as raised:
        read_webhook_url(url, ANY)
    assert "secret" not in str(raised.value)


def test_only_ports_that_the_operator_names_are_used_but_for_its_own_webhook() -> None:
    rules = WebhookRules(ports=frozenset((443, 22)), own="http://10.0.0.1:81/x")
    assert read_webhook_url("https://a.example:22/", rules).port == 22
    assert read_webhook_url("http://10.0.0.1:81/x", rules).port == 81
    with pytest.raises(WebhookRefused, match="port 8443"):
        read_webhook_url("https://a.example:8443/", rules)
