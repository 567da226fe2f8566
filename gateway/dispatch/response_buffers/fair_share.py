"""Counts by key and by tenant the bytes that answers hold of a bounded resource, so that none takes all of
it."""

SHARE = 2
"""A tenant may hold one part in so many of what the other tenants leave, a key of what its tenant may hold
and the tenant's other keys leave, an answer of what its key has free."""


class FairShareCounter:
    """Each may hold half of what the others leave. So there is always room for one more tenant, key and
    answer. Belongs to the event loop's thread."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._by_key: dict[tuple[str, str], int] = {}
        """Bytes held, by tenant and key; without entries of 0."""
        self._by_tenant: dict[str, int] = {}

    def room_bytes(self, key: str, tenant: str, held_bytes: int) -> int:
        """What an answer that holds so much may still take: its share of what all answers to ``key`` of
        ``tenant`` may together. Not positive: nothing."""
        by_tenant, by_key = self._by_tenant.get(tenant, 0), self._by_key.get((tenant, key), 0)
        tenant_bytes = (self.total_bytes - self.used_bytes + by_tenant) // SHARE - by_tenant
        key_bytes = (tenant_bytes + by_key) // SHARE - by_key
        free_bytes = tenant_bytes if tenant_bytes < key_bytes else key_bytes
        return (free_bytes - held_bytes) // SHARE

    def count(self, key: str, tenant: str, size_bytes: int) -> None:
        """An answer to ``key`` of ``tenant`` holds so many bytes more, or fewer if below 0."""
        by_tenant = self._by_tenant.get(tenant, 0) + size_bytes
        by_key = self._by_key.get((tenant, key), 0) + size_bytes
        assert by_key >= 0, (tenant, key, by_key)
        self.used_bytes += size_bytes
        if by_tenant:
            self._by_tenant[tenant] = by_tenant
        else:
            self._by_tenant.pop(tenant, None)
        if by_key:
            self._by_key[tenant, key] = by_key
        else:
            self._by_key.pop((tenant, key), None)
