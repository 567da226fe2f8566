"""Who a client is when proxies stand in front, and how much of a gateway each address may take.

Proxies write X-Forwarded-For and -Proto, or Forwarded (RFC 7239). Anybody can write these fields, so they
count only on connections that come from a trusted network, and there only as far back as each hop was told of
by a trusted one.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

_KNOWN = 4096


class PerAddressLimiter:
    """Counts what is taken by group of addresses. Holds what is taken now and nothing else."""

    def __init__(self, most: int | None = None, free: Callable[[str], bool] = lambda address: False) -> None:
        """A group may take ``most`` (None: any number). ``free`` says which addresses may take all."""
        self._most = most
        self._free = free
        self._taken: Counter[str] = Counter()
        self.group = lru_cache(maxsize=_KNOWN)(self._group)
        """The group that counts for an address: itself, of IPv6 its /64, which one customer has; empty for
        those who may take all."""

    def fewer(self, most: int) -> "PerAddressLimiter":
        """Places of another kind for the same groups: ``most`` for each, or as many as here if these are
        less."""
        return PerAddressLimiter(None if self._most is None else min(most, self._most), self._free)

    def take(self, group: str) -> bool:
        """Whether there was a place. Give it back by :meth:`leave`."""
        if not group:
            return True
        if self._taken[group] >= (self._most or 0):
            if not self._taken[group]:
                del self._taken[group]
            return False
        self._taken[group] += 1
        return True

    def leave(self, group: str) -> None:
        if group:
            self._taken[group] -= 1
            if not self._taken[group]:
                del self._taken[group]

    def _group(self, address: str) -> str:
        if self._most is None or self._free(address):
            return ""
        parsed = _parsed(address.partition("%")[0])
        if parsed is None or parsed.is_loopback:
            return ""
        if isinstance(parsed, ipaddress.IPv6Address):
            return str(ipaddress.ip_network((parsed, 64), strict=False))
        return str(parsed)


HOPS = 32
"""Proxies in a row that are looked at."""

_PAIR = re.compile(r"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(\"(?:[^\"\\]|\\.)*\"|[^,;\"\s]*)[ \t]*(,|;|\Z)")

HeaderFields = Sequence[tuple[bytes, bytes]]


class ClientOrigin(NamedTuple):
    """Where a request comes from; ``scheme`` is what the client spoke, None if nobody says."""

    address: str
    scheme: str | None


class TrustedProxies:
    """Networks whose word counts, and the one field in which they give it."""

    def __init__(self, networks: Iterable[str], header: str = "x-forwarded-for") -> None:
        """``header`` is ``x-forwarded-for`` (with ``x-forwarded-proto`` beside it) or ``forwarded``."""
        self._networks = tuple(ipaddress.ip_network(network) for network in networks)
        self._standard = header == "forwarded"
        self.trusts = lru_cache(maxsize=_KNOWN)(self._trusts)
        """Whether the proxy of this address is believed."""

    def origin(self, peer: str, headers: HeaderFields) -> ClientOrigin:
        """Whose request it is that came with ``headers`` (names in lower case) from ``peer``."""
        if not self.trusts(peer):
            return ClientOrigin(peer, None)
        hops, scheme = self._forwarded(headers) if self._standard else self._x_forwarded(headers)
        address = peer
        for hop in reversed(hops[-HOPS:]):
            said = read_address(hop) if self.trusts(address) else None
            if said is None:
                break
            address = said
        return ClientOrigin(address, scheme)

    def _trusts(self, address: str) -> bool:
        parsed = _parsed(address.partition("%")[0])
        return parsed is not None and any(parsed in network for network in self._networks)

    def _x_forwarded(self, headers: HeaderFields) -> tuple[list[str], str | None]:
        hops = _joined(headers, b"x-forwarded-for")
        schemes = _joined(headers, b"x-forwarded-proto")
        scheme = schemes.rpartition(",")[2].strip().lower()
        return hops.split(",") if hops else [], scheme or None

    def _forwarded(self, headers: HeaderFields) -> tuple[list[str], str | None]:
        elements = read_forwarded(_joined(headers, b"forwarded"))
        scheme = elements[-1].get("proto", "").lower() if elements else ""
        return [element.get("for", "") for element in elements], scheme or None


def _joined(headers: HeaderFields, wanted: bytes) -> str:
    return ",".join(value.decode("latin-1") for name, value in headers if name == wanted)


def read_forwarded(text: str) -> list[dict[str, str]]:
    """The elements of a Forwarded field, names in lower case; empty for one that is malformed anywhere: a
    quote that a client left open could hide what proxies added."""
    elements: list[dict[str, str]] = [{}]
    place = 0
    while place < len(text):
        pair = _PAIR.match(text, place)
        if pair is None:
            return []
        name, value, end = pair.groups()
        elements[-1][name.lower()] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value[:1] == '"' else value
        if end == ",":
            elements.append({})
        place = pair.end()
    return elements if elements[-1] else []


def read_address(text: str) -> str | None:
    """The IP address in ``1.2.3.4``, ``1.2.3.4:80``, ``2001:db8::1`` or ``[2001:db8::1]:80``."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    parsed = _parsed(text)
    return None if parsed is None else str(parsed)


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address; that of IPv4 where it is written as one of IPv6."""
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed
