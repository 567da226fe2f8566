"""Bytes that answers hold of something bounded, counted by key and by tenant, so that nobody has it all."""

from collections import Counter as Tally
from typing import TypeVar

_Name = TypeVar("_Name")

SHARE = 2
"""A tenant may hold one part in so many of what the other tenants leave, a key of what its tenant may hold
and the tenant's other keys leave, an answer of what its key has free."""


class FairTally:
    """Each may hold half of what those beside it leave: whoever holds however much, there is room for one
    more tenant, key and answer. Belongs to the event loop's thread."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._by_key: Tally[tuple[str, str]] = Tally()
        """By tenant and key."""
        self._by_tenant: Tally[str] = Tally()

    def free_bytes(self, key: str, tenant: str) -> int:
        """What answers to ``key`` may still take, all together; not positive: nothing."""
        by_tenant, by_key = self._by_tenant[tenant], self._by_key[tenant, key]
        tenant_bytes = (self.total_bytes - self.used_bytes + by_tenant) // SHARE
        key_bytes = (tenant_bytes - by_tenant + by_key) // SHARE
        return min(tenant_bytes - by_tenant, key_bytes - by_key)

    def room_bytes(self, key: str, tenant: str, held_bytes: int) -> int:
        """What an answer that holds so much may still take; not positive: nothing."""
        return (self.free_bytes(key, tenant) - held_bytes) // SHARE

    def count(self, key: str, tenant: str, size_bytes: int) -> None:
        """An answer to ``key`` of ``tenant`` holds so many bytes more, or fewer if below 0."""
        self.used_bytes += size_bytes
        _add(self._by_key, (tenant, key), size_bytes)
        _add(self._by_tenant, tenant, size_bytes)


def _add(tally: Tally[_Name], name: _Name, size_bytes: int) -> None:
    tally[name] += size_bytes
    assert tally[name] >= 0, (name, tally[name])
    if not tally[name]:
        del tally[name]
