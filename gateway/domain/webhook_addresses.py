"""Where webhooks may be sent: which URLs, and which of the addresses that their hosts have. Pure.

Who names a webhook chooses where the gateway connects to. Without these rules it could be made to talk to
what only it reaches: metadata services, databases, itself (server-side request forgery).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

URL_CHARS = 2000
UNPRIVILEGED_PORT = 1024

_PLAIN = re.compile(r"[\x21-\x7e]+")
_PORTS = {"http": 80, "https": 443}

REFUSED = tuple(
    (ip_network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a carrier's customers"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.31.196.0/24", "reserved"),
        ("192.52.193.0/24", "reserved"),
        ("192.88.99.0/24", "6to4"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "reserved"),
        ("198.18.0.0/15", "benchmarks"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::1/128", "loopback"),
        ("::/128", "unspecified"),
        ("::ffff:0:0/96", "an IPv4 address in IPv6"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("fc00::/7", "unique local"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        ("2001::/32", "Teredo"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("2620:4f:8000::/48", "reserved"),
        ("3fff::/20", "documentation"),
    )
)
"""Networks whose addresses are not those of a receiver on the Internet, and what they are. Of IPv6, all
that is outside ``2000::/3`` is refused besides. IANA's special-purpose address registries (RFC 6890)."""

_GLOBAL_UNICAST = ip_network("2000::/3")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The first half of an interface's identifier whose second half is an IPv4 address (RFC 5214)."""


class WebhookRefused(ValueError):
    """Nothing is sent to this address. The message says why, and names no address that the client did not."""


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """What the operator says of webhooks."""

    networks: tuple[Network, ...] = ()
    """Allowed beside the Internet's."""
    ports: frozenset[int] = frozenset()
    """The only ones; empty: 80, 443 and those from 1024 on."""
    own: str | None = None
    """The operator's webhook: it may be anywhere."""


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """A webhook's URL in its parts."""

    scheme: str
    host: str
    port: int
    authority: str
    """As it is written, for the field ``host``."""
    path: str
    """With the query."""


def read_webhook_url(url: str, rules: WebhookRules) -> WebhookTarget:
    """The parts of ``url``. Raises WebhookRefused for one that can never be used."""
    if len(url) > URL_CHARS:
        raise WebhookRefused(f"a webhook's URL has at most {URL_CHARS} characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise WebhookRefused(f"this is no URL: {error}") from None
    if _PLAIN.fullmatch(url) is None or not host or parts.scheme not in _PORTS:
        raise WebhookRefused("write https://HOST/PATH, in ASCII and without blanks")
    if "@" in parts.netloc:
        raise WebhookRefused("a webhook's URL holds no user and no password: its signature says who sends it")
    if parts.fragment or "#" in url:
        raise WebhookRefused("a webhook's URL has no fragment")
    number = _PORTS[parts.scheme] if port is None else port
    usual = number in _PORTS.values() or number >= UNPRIVILEGED_PORT
    if url != rules.own and (number not in rules.ports if rules.ports else not usual):
        raise WebhookRefused(f"webhooks are not sent to port {number} (jobs.webhook_ports)")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(parts.scheme, host, number, parts.netloc, path)


def kind_refused(text: str, networks: Sequence[Network] = ()) -> str | None:
    """Of what kind an address is to which nothing is sent; None: something may be. ``networks`` are allowed
    whatever they are."""
    try:
        address = ip_address(text)
    except ValueError:
        return "no address"
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return "link-local"
    if any(address in network for network in networks if network.version == address.version):
        return None
    for network, kind in REFUSED:
        if network.version == address.version and address in network:
            return kind
    if isinstance(address, IPv6Address):
        if address not in _GLOBAL_UNICAST:
            return "reserved"
        if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
            return "an IPv4 address in IPv6"
    return None if address.is_global else "reserved"
