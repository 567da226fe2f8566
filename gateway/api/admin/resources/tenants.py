"""Tenants' limits and models' prices. A running gateway goes by a change from the next request on.

A tenant is made by its first key; limits may be given before.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Gt

from gateway.api.admin.resources.resource import (
    AdminRequest,
    BadInput,
    Field,
    Json,
    Resource,
    ResourceCommand,
    Table,
)
from gateway.api.admin.resources.text import RATE_FIELDS, Limit, format_limits, limit_field
from gateway.domain.quotas import MOST_AMOUNT, NAMES, WEIGHTS

if TYPE_CHECKING:
    from gateway.storage import PriceRecord, Store, TenantRecord

TENANTS = Resource(
    "tenant",
    "/admin/tenants",
    "What tenants may have: limits, budgets, shares.",
    example="trunkline tenant set acme --tpm 200000 --queue-share 0.2",
    argument=("name", "The tenant's name."),
)
PRICES = Resource(
    "price",
    "/admin/prices",
    "What models cost, for budgets in money and for usage.",
    example="trunkline price set llama-70b --input 0.5 --output 1.5",
    argument=("model", "The model's own name, not an alias; '*': every model without a price."),
)
_AMOUNT: Any = Annotated[float, Gt(0)]
_SHARE = "Of the places in which requests wait, as many as its may take: 0.2 is a fifth; 0: all."
_WEIGHT = "Its share of slots beside tenants of weight 1; 0: as the gateway's settings say."
_BUDGETS = {
    "tokens_per_day": "Tokens in a day (UTC)",
    "tokens_per_month": "Tokens in a calendar month (UTC)",
    "gpu_seconds_per_day": "GPU-seconds in a day",
    "gpu_seconds_per_month": "GPU-seconds in a month",
    "money_per_day": "Money in a day, as prices have it",
    "money_per_month": "Money in a month",
}


def _budget_field(name: str, about: str) -> Field:
    type_ = Limit if name.startswith("tokens") else _AMOUNT
    option = f"--budget-{name.replace('_', '-')}"
    return limit_field(name, f"{about}; 0: no limit.", type_, option=option, metavar="N")


_LIMITS = (
    *RATE_FIELDS,
    limit_field("queue_share", _SHARE, _AMOUNT, most=1),
    limit_field("weight", _WEIGHT, _AMOUNT, most=WEIGHTS[1]),
    *(_budget_field(name, about) for name, about in _BUDGETS.items()),
)


def _limits_text(facts: Json) -> str:
    return format_limits(facts, NAMES)


def _changed_text(facts: Json) -> str:
    return f"Tenant {facts['name']!r}: {_limits_text(facts) or 'no limits'}."


def _check_change(body: Json) -> Json:
    if not body:
        raise BadInput("say at least one limit; see: trunkline tenant set --help")
    return body


@TENANTS.operation(
    "PATCH",
    "/{tenant}",
    ResourceCommand("set", _changed_text, body=_check_change),
    fields=_LIMITS,
    makes_state=True,
)
def set_tenant(store: "Store", request: AdminRequest) -> Json:
    """Give a tenant limits, all its keys together. What is not named stays as it is.

    Example: trunkline tenant set acme --tpm 200000 --queue-share 0.2 --budget-money-per-month 500
    """
    if not request.body:
        raise BadInput(f"say at least one limit: {', '.join(NAMES)}")
    return tenant_facts(store.limits.tenants.change(request.name, request.body, request.wall_s))


_TENANT_TABLE = Table("tenants", {"NAME": "name", "LIMITS": _limits_text}, "no tenant was given limits")


@TENANTS.operation("GET", "", ResourceCommand("list", table=_TENANT_TABLE))
def list_tenants(store: "Store", request: AdminRequest) -> Json:
    """List tenants that were given limits.

    Example: trunkline tenant list --json
    """
    return {"tenants": [tenant_facts(record) for record in store.limits.tenants.list()]}


@TENANTS.operation("DELETE", "/{tenant}", ResourceCommand("remove", "Tenant {name!r} has no limits."))
def remove_tenant(store: "Store", request: AdminRequest) -> Json:
    """Take all limits of a tenant away. Its keys and its usage stay.

    Example: trunkline tenant remove acme
    """
    store.limits.tenants.remove(request.name)
    return {"name": request.name, "removed": True}


def _price_field(name: str, about: str) -> Field:
    return Field(name, float, about, default=0.0, least=0, most=MOST_AMOUNT, metavar="N")


_PRICE = (
    _price_field("input", "For a million tokens of prompts."),
    _price_field("output", "For a million tokens of answers."),
    _price_field("gpu_second", "For a second of a GPU."),
)
_PRICE_TEXT = "{model}: {input:g} for a million tokens in, {output:g} out, {gpu_second:g} for a GPU-second."


@PRICES.operation(
    "PUT", "/{model:path}", ResourceCommand("set", _PRICE_TEXT), fields=_PRICE, makes_state=True
)
def set_price(store: "Store", request: AdminRequest) -> Json:
    """Say what a model costs from now on, in whatever money budgets are in. What was used before keeps its
    price.

    Example: trunkline price set llama-70b --input 0.5 --output 1.5
    """
    input_, output, gpu_second = (request.body[each.name] for each in _PRICE)
    return price_facts(store.limits.prices.set(request.name, input_, output, gpu_second, request.wall_s))


_PRICE_TABLE = Table(
    "prices",
    {"MODEL": "model", "INPUT": "input", "OUTPUT": "output", "GPU-SECOND": "gpu_second"},
    "no model has a price",
)


@PRICES.operation("GET", "", ResourceCommand("list", table=_PRICE_TABLE))
def list_prices(store: "Store", request: AdminRequest) -> Json:
    """List prices: for a million tokens in and out, and for a GPU-second.

    Example: trunkline price list --json
    """
    return {"prices": [price_facts(record) for record in store.limits.prices.list()]}


@PRICES.operation("DELETE", "/{model:path}", ResourceCommand("remove", "{model} has no price of its own."))
def remove_price(store: "Store", request: AdminRequest) -> Json:
    """Take a model's price away: it costs what '*' costs, or nothing.

    Example: trunkline price remove llama-70b
    """
    store.limits.prices.remove(request.name)
    return {"model": request.name, "removed": True}


def tenant_facts(record: "TenantRecord") -> Json:
    """All limits of a tenant, None where it has none."""
    return {"name": record.name, **record.limits.facts(), "changed_s": record.changed_s}


def price_facts(record: "PriceRecord") -> Json:
    """What a model costs."""
    return {"model": record.model, **asdict(record.price), "changed_s": record.changed_s}
