"""``trunkline tenant`` and ``price``: what tenants may have, and what models cost.

A running gateway goes by a change from the next request on. A tenant is made by its first key; limits may be
given before.
"""

import time
from typing import Annotated, Any

import typer

from gateway.cli_limits import ConcurrencyOption, RpmOption, TpmOption, given, told
from gateway.cli_output import note, print_json, print_table
from gateway.cli_state import JsonOption, StateOption, opened
from gateway.store import PriceRecord, TenantRecord

NameArgument = Annotated[str, typer.Argument(help="The tenant's name.")]
ModelArgument = Annotated[
    str, typer.Argument(help="The model's own name, not an alias; '*': every model without a price.")
]

tenants = typer.Typer(no_args_is_help=True, help="What tenants may have: limits, budgets, shares.")
prices = typer.Typer(no_args_is_help=True, help="What models cost, for budgets in money and for usage.")


def register(app: typer.Typer) -> None:
    """Add ``tenant`` and ``price`` to a command line."""
    app.add_typer(tenants, name="tenant")
    app.add_typer(prices, name="price")


def _budget(what: str) -> Any:
    return typer.Option(help=f"{what}; 0: no limit.", min=0, metavar="N")


@tenants.command("set")
def set_tenant(
    name: NameArgument,
    state: StateOption,
    rpm: RpmOption = None,
    tpm: TpmOption = None,
    concurrency: ConcurrencyOption = None,
    queue_share: Annotated[
        float | None,
        typer.Option(
            help="Of the places in which requests wait, as many as its may take: 0.2 is a fifth; 0: all.",
            min=0,
            max=1,
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            help="Its share of slots beside tenants of weight 1; 0: as the gateway's settings say.", min=0
        ),
    ] = None,
    budget_tokens_per_day: Annotated[int | None, _budget("Tokens in a day (UTC)")] = None,
    budget_tokens_per_month: Annotated[int | None, _budget("Tokens in a calendar month (UTC)")] = None,
    budget_gpu_seconds_per_day: Annotated[float | None, _budget("GPU-seconds in a day")] = None,
    budget_gpu_seconds_per_month: Annotated[float | None, _budget("GPU-seconds in a month")] = None,
    budget_money_per_day: Annotated[float | None, _budget("Money in a day, as prices have it")] = None,
    budget_money_per_month: Annotated[float | None, _budget("Money in a month")] = None,
    as_json: JsonOption = False,
) -> None:
    """Give a tenant limits, all its keys together. What is not named stays as it is.

    Example: trunkline tenant set acme --tpm 200000 --queue-share 0.2 --budget-money-per-month 500
    """
    changes = given(
        rpm=rpm,
        tpm=tpm,
        concurrency=concurrency,
        queue_share=queue_share,
        weight=weight,
        tokens_per_day=budget_tokens_per_day,
        tokens_per_month=budget_tokens_per_month,
        gpu_seconds_per_day=budget_gpu_seconds_per_day,
        gpu_seconds_per_month=budget_gpu_seconds_per_month,
        money_per_day=budget_money_per_day,
        money_per_month=budget_money_per_month,
    )
    if not changes:
        raise typer.BadParameter("say at least one limit; see: trunkline tenant set --help")
    with opened(state, create=True) as store:
        record = store.limits.tenants.change(name, changes, time.time())
    if as_json:
        print_json(_tenant_facts(record))
        return
    note(f"Tenant {name!r}: {told(record.limits.facts()) or 'no limits'}.")


@tenants.command("list")
def list_tenants(state: StateOption, as_json: JsonOption = False) -> None:
    """List tenants that were given limits.

    Example: trunkline tenant list --json
    """
    with opened(state) as store:
        records = store.limits.tenants.list()
    if as_json:
        print_json([_tenant_facts(record) for record in records])
        return
    rows = [[record.name, told(record.limits.facts())] for record in records]
    print_table(["NAME", "LIMITS"], rows, "no tenant was given limits")


@tenants.command("remove")
def remove_tenant(name: NameArgument, state: StateOption) -> None:
    """Take all limits of a tenant away. Its keys and its usage stay.

    Example: trunkline tenant remove acme
    """
    with opened(state) as store:
        store.limits.tenants.remove(name)
    note(f"Tenant {name!r} has no limits.")


@prices.command("set")
def set_price(
    model: ModelArgument,
    state: StateOption,
    input_: Annotated[float, typer.Option("--input", help="For a million tokens of prompts.", min=0)] = 0.0,
    output: Annotated[float, typer.Option(help="For a million tokens of answers.", min=0)] = 0.0,
    gpu_second: Annotated[float, typer.Option(help="For a second of a GPU.", min=0)] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Say what a model costs from now on, in whatever money budgets are in. What was used before keeps its
    price.

    Example: trunkline price set llama-70b --input 0.5 --output 1.5
    """
    with opened(state, create=True) as store:
        record = store.limits.prices.set(model, input_, output, gpu_second, time.time())
    if as_json:
        print_json(_price_facts(record))
        return
    note(f"{model}: {input_:g} for a million tokens in, {output:g} out, {gpu_second:g} for a GPU-second.")


@prices.command("list")
def list_prices(state: StateOption, as_json: JsonOption = False) -> None:
    """List prices: for a million tokens in and out, and for a GPU-second.

    Example: trunkline price list --json
    """
    with opened(state) as store:
        records = store.limits.prices.list()
    if as_json:
        print_json([_price_facts(record) for record in records])
        return
    rows = [
        [
            each.model,
            *(f"{value:g}" for value in (each.price.input, each.price.output, each.price.gpu_second)),
        ]
        for each in records
    ]
    print_table(["MODEL", "INPUT", "OUTPUT", "GPU-SECOND"], rows, "no model has a price")


@prices.command("remove")
def remove_price(model: ModelArgument, state: StateOption) -> None:
    """Take a model's price away: it costs what '*' costs, or nothing.

    Example: trunkline price remove llama-70b
    """
    with opened(state) as store:
        store.limits.prices.remove(model)
    note(f"{model} has no price of its own.")


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
