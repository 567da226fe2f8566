"""Operations on tenants' limits and models' prices."""

from typing import Any

from gateway.api.admin.resources.request import AdminRequest, Json
from gateway.domain.quotas import NAMES
from gateway.storage import PriceRecord, Store, TenantRecord
from gateway.storage.errors import BadValue


def list_tenants(store: Store, asked: AdminRequest) -> Json:
    """Every tenant that was given limits."""
    return {"tenants": [_tenant_facts(record) for record in store.limits.tenants.list()]}


def set_tenant(store: Store, asked: AdminRequest) -> Json:
    """Give it limits, all its keys together; null: none. Those not named stay."""
    changes = {name: asked.body[name] for name in NAMES if name in asked.body}
    if not changes:
        raise BadValue(f"say at least one limit: {', '.join(NAMES)}")
    return _tenant_facts(store.limits.tenants.change(asked.name, changes, asked.wall_s))


def remove_tenant(store: Store, asked: AdminRequest) -> Json:
    """Take all its limits away. Its keys and its usage stay."""
    store.limits.tenants.remove(asked.name)
    return {"name": asked.name, "removed": True}


def list_prices(store: Store, asked: AdminRequest) -> Json:
    """Every price: for a million tokens in and out, and for a GPU-second."""
    return {"prices": [_price_facts(record) for record in store.limits.prices.list()]}


def set_price(store: Store, asked: AdminRequest) -> Json:
    """Say what a model costs from now on. What was used before keeps its price."""
    input_, output, gpu_second = (asked.body.get(name, 0.0) for name in ("input", "output", "gpu_second"))
    return _price_facts(store.limits.prices.set(asked.name, input_, output, gpu_second, asked.wall_s))


def remove_price(store: Store, asked: AdminRequest) -> Json:
    """Take its price away: it costs what '*' costs, or nothing."""
    store.limits.prices.remove(asked.name)
    return {"model": asked.name, "removed": True}


def _tenant_facts(record: TenantRecord) -> dict[str, Any]:
    return {"name": record.name, **record.limits.facts(), "changed_s": record.changed_s}


def _price_facts(record: PriceRecord) -> dict[str, Any]:
    price = record.price
    return {
        "model": record.model,
        "input": price.input,
        "output": price.output,
        "gpu_second": price.gpu_second,
        "changed_s": record.changed_s,
    }
