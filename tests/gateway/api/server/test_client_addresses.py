import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.server.client_addresses import (
    HOPS,
    ClientOrigin,
    PerAddressLimiter,
    TrustedProxies,
    read_address,
    read_forwarded,
)

PROXY = "10.0.0.1"


def seen(
    *values: bytes, peer: str = PROXY, header: str = "x-forwarded-for", proto: bytes | None = None
) -> ClientOrigin:
    fields = [(header.encode(), value) for value in values]
    if proto is not None:
        fields.append((b"x-forwarded-proto", proto))
    return TrustedProxies(["10.0.0.0/8", "2001:db8:1::/48"], header).origin(peer, fields)


def test_a_stranger_is_not_believed() -> None:
    assert seen(b"1.2.3.4", peer="192.0.2.1", proto=b"https") == ClientOrigin("192.0.2.1", None)
    assert seen(b"for=1.2.3.4;proto=https", peer="192.0.2.1", header="forwarded") == ClientOrigin(
        "192.0.2.1", None
    )


def test_a_proxy_is_believed_as_far_as_proxies_told_it() -> None:
    assert seen(b"1.2.3.4") == ClientOrigin("1.2.3.4", None)
    assert seen(b"6.6.6.6, 1.2.3.4, 10.0.0.9").address == "1.2.3.4"
    assert seen(b"6.6.6.6", b"1.2.3.4").address == "1.2.3.4"
    assert seen(b"10.0.0.7, 10.0.0.9").address == "10.0.0.7"
    assert seen(b"1.2.3.4", peer="::ffff:10.0.0.1").address == "1.2.3.4"
    assert seen(b"1.2.3.4", peer="2001:db8:1::9").address == "1.2.3.4"


def test_what_is_no_address_ends_the_way_back() -> None:
    assert seen().address == PROXY
    assert seen(b"6.6.6.6, unknown").address == PROXY
    assert seen(b"6.6.6.6, _hidden, 10.0.0.9").address == "10.0.0.9"
    assert seen(b"6.6.6.6, " + b"10.0.0.9, " * HOPS + b"10.0.0.8").address == "10.0.0.9"


def test_the_nearest_proxy_says_which_scheme_was_spoken() -> None:
    assert seen(b"1.2.3.4", proto=b"HTTPS").scheme == "https"
    assert seen(b"1.2.3.4", proto=b"https, http").scheme == "http"
    assert seen(b"for=1.2.3.4;proto=http", header="forwarded") == ClientOrigin("1.2.3.4", "http")


def test_only_the_field_that_the_proxies_write_counts() -> None:
    x, forwarded = (b"x-forwarded-for", b"6.6.6.6"), (b"forwarded", b"for=1.2.3.4")
    assert TrustedProxies(["10.0.0.0/8"]).origin(PROXY, [x, forwarded]).address == "6.6.6.6"
    assert TrustedProxies(["10.0.0.0/8"], "forwarded").origin(PROXY, [x, forwarded]).address == "1.2.3.4"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (b"for=1.2.3.4", "1.2.3.4"),
        (b'For="1.2.3.4:80"; by=10.0.0.1', "1.2.3.4"),
        (b'for="[2001:db8::1]:80"', "2001:db8::1"),
        (b"for=6.6.6.6, for=1.2.3.4", "1.2.3.4"),
        (b'for="6.6.6.6, for=1.2.3.4', PROXY),  # a quote left open
        (b'for="6.6.6.6, for=1.2.3.4, for="[2001:db8::1]"', PROXY),
        (b"for=_secret", PROXY),
        (b"nonsense", PROXY),
    ],
)
def test_forwarded_is_read_as_its_rfc_says(text: bytes, address: str) -> None:
    assert seen(text, header="forwarded").address == address


@settings(max_examples=40)
@given(st.text(alphabet='for=proto;,"\\ 1.2:[]abc', max_size=60))
def test_any_text_is_read_without_a_fault(text: str) -> None:
    read_forwarded(text)
    read_address(text)
    seen(text.encode("latin-1"))
    seen(text.encode("latin-1"), header="forwarded")


# --- Places ---


def test_an_address_takes_no_more_than_its_places() -> None:
    places = PerAddressLimiter(2)
    one, other = places.group("192.0.2.1"), places.group("192.0.2.2")
    assert [places.take(one) for _ in range(3)] == [True, True, False]
    assert places.take(other)
    places.leave(one)
    assert places.take(one)


def test_a_whole_network_of_ipv6_is_one_and_mapped_addresses_are_ipv4() -> None:
    places = PerAddressLimiter(1)
    assert places.group("2001:db8::1") == places.group("2001:db8::ffff:2") != places.group("2001:db8:0:1::1")
    assert places.group("::ffff:192.0.2.1") == places.group("192.0.2.1")


def test_loopback_and_the_trusted_may_take_all() -> None:
    places = PerAddressLimiter(1, TrustedProxies(["10.0.0.0/8"]).trusts)
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3", "not an address"):
        assert all(places.take(places.group(address)) for _ in range(3))
    assert all(PerAddressLimiter(None).take(PerAddressLimiter(None).group("192.0.2.1")) for _ in range(3))


def test_nothing_is_kept_of_those_who_left() -> None:
    places = PerAddressLimiter(1)
    for number in range(100):
        group = places.group(f"192.0.2.{number}")
        assert places.take(group)
        assert not places.take(group)
        places.leave(group)
    assert not places._taken
