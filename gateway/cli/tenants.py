"""``trunkline tenant`` and ``price``: what tenants may have, and what models cost.

A running gateway goes by a change from the next request on. A tenant is made by its first key; limits may be
given before.
"""

from typing import Annotated, Any

import typer

from gateway.cli.access import GatewayAccess, on_a_gateway
from gateway.cli.limits import ConcurrencyOption, RpmOption, TpmOption, given, told
from gateway.cli.options import JsonOption
from gateway.domain.quotas import MOST_AMOUNT, MOST_COUNT, NAMES, WEIGHTS
from gateway.tools.console import note, print_json, print_table
from shared.process.command_line import command_group

NameArgument = Annotated[str, typer.Argument(help="The tenant's name.")]
ModelArgument = Annotated[
    str, typer.Argument(help="The model's own name, not an alias; '*': every model without a price.")
]

tenants = command_group(
    "What tenants may have: limits, budgets, shares.",
    example="trunkline tenant set acme --tpm 200000 --queue-share 0.2",
)
prices = command_group(
    "What models cost, for budgets in money and for usage.",
    example="trunkline price set llama-70b --input 0.5 --output 1.5",
)


def register(app: typer.Typer) -> None:
    """Add ``tenant`` and ``price`` to a command line."""
    app.add_typer(tenants, name="tenant")
    app.add_typer(prices, name="price")


def _budget(what: str) -> Any:
    return typer.Option(help=f"{what}; 0: no limit.", min=0, max=MOST_COUNT, metavar="N")


def _price(what: str, *names: str) -> Any:
    return typer.Option(*names, help=what, min=0, max=MOST_AMOUNT, metavar="N")


@tenants.command("set")
@on_a_gateway
def set_tenant(
    gateway: GatewayAccess,
    name: NameArgument,
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
            help="Its share of slots beside tenants of weight 1; 0: as the gateway's settings say.",
            min=0,
            max=WEIGHTS[1],
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
    facts = gateway.do("set_tenant", name, **changes)
    if as_json:
        print_json(facts)
        return
    note(f"Tenant {name!r}: {_limits_text(facts) or 'no limits'}.")


@tenants.command("list")
@on_a_gateway
def list_tenants(gateway: GatewayAccess, as_json: JsonOption = False) -> None:
    """List tenants that were given limits.

    Example: trunkline tenant list --json
    """
    found = gateway.do("list_tenants")["tenants"]
    if as_json:
        print_json(found)
        return
    rows = [[facts["name"], _limits_text(facts)] for facts in found]
    print_table(["NAME", "LIMITS"], rows, "no tenant was given limits")


@tenants.command("remove")
@on_a_gateway
def remove_tenant(gateway: GatewayAccess, name: NameArgument) -> None:
    """Take all limits of a tenant away. Its keys and its usage stay.

    Example: trunkline tenant remove acme
    """
    gateway.do("remove_tenant", name)
    note(f"Tenant {name!r} has no limits.")


@prices.command("set")
@on_a_gateway
def set_price(
    gateway: GatewayAccess,
    model: ModelArgument,
    input_: Annotated[float, _price("For a million tokens of prompts.", "--input")] = 0.0,
    output: Annotated[float, _price("For a million tokens of answers.")] = 0.0,
    gpu_second: Annotated[float, _price("For a second of a GPU.")] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Say what a model costs from now on, in whatever money budgets are in. What was used before keeps its
    price.

    Example: trunkline price set llama-70b --input 0.5 --output 1.5
    """
    facts = gateway.do("set_price", model, input=input_, output=output, gpu_second=gpu_second)
    if as_json:
        print_json(facts)
        return
    note(f"{model}: {input_:g} for a million tokens in, {output:g} out, {gpu_second:g} for a GPU-second.")


@prices.command("list")
@on_a_gateway
def list_prices(gateway: GatewayAccess, as_json: JsonOption = False) -> None:
    """List prices: for a million tokens in and out, and for a GPU-second.

    Example: trunkline price list --json
    """
    found = gateway.do("list_prices")["prices"]
    if as_json:
        print_json(found)
        return
    columns = ("input", "output", "gpu_second")
    rows = [[facts["model"], *(f"{facts[name]:g}" for name in columns)] for facts in found]
    print_table(["MODEL", "INPUT", "OUTPUT", "GPU-SECOND"], rows, "no model has a price")


@prices.command("remove")
@on_a_gateway
def remove_price(gateway: GatewayAccess, model: ModelArgument) -> None:
    """Take a model's price away: it costs what '*' costs, or nothing.

    Example: trunkline price remove llama-70b
    """
    gateway.do("remove_price", model)
    note(f"{model} has no price of its own.")


def _limits_text(facts: dict[str, Any]) -> str:
    return told({name: facts[name] for name in NAMES})
