"""How much of a gateway each address may take."""

import ipaddress
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

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
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return ""
        if isinstance(parsed, ipaddress.IPv6Address):
            if parsed.ipv4_mapped is not None:
                return self._group(str(parsed.ipv4_mapped))
            if not parsed.is_loopback:
                return str(ipaddress.ip_network((parsed, 64), strict=False))
        return "" if parsed.is_loopback else str(parsed)
