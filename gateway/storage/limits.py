"""All that limits what clients may have, read at once: tenants' limits and models' prices."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.domain.quotas import Price, TenantLimits
from gateway.storage import schema
from gateway.storage.database import Database
from gateway.storage.prices import PriceStore
from gateway.storage.tenants import TenantStore


@dataclass(frozen=True, slots=True)
class Terms:
    """Limits by tenant, prices by model."""

    tenants: Mapping[str, TenantLimits]
    prices: Mapping[str, Price]


class LimitStore:
    """``tenants`` and ``prices`` in one. Every method raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tenants = TenantStore(database)
        self.prices = PriceStore(database)

    def changed_since(self, revision: int) -> tuple[int, Terms | None]:
        """The present revision, and what there is if it is another than ``revision``, else None. It may be
        newer than the revision, never older."""
        with self._database.read() as connection:
            present = schema.read_revision(connection, schema.Topic.LIMITS)
        if present == revision:
            return present, None
        tenants = {each.name: each.limits for each in self.tenants.list()}
        return present, Terms(tenants, {each.model: each.price for each in self.prices.list()})
