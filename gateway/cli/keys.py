"""``trunkline key``: API keys, which let clients in."""

from typing import Annotated, Any

import typer

from gateway.cli.access import GatewayAccess, on_a_gateway
from gateway.cli.limits import ConcurrencyOption, RpmOption, TpmOption, given, rates_of, told
from gateway.cli.options import JsonOption, duration_s, listed
from gateway.domain.residency import BadResidency, Residency, read_where
from gateway.domain.scopes import AdminRole
from gateway.tools.console import moment, note, print_json, print_table
from shared.process.command_line import command_group
from shared.protocol.routes import ANY_ROUTE, ROUTES

DEFAULT_TENANT = "default"

keys = command_group(
    "API keys for clients.", example="trunkline key create --name laptop --models 'llama-*' --expires 30d"
)

NameArgument = Annotated[str, typer.Argument(help="Its name or id.")]


def register(app: typer.Typer) -> None:
    """Add ``key`` to a command line."""
    app.add_typer(keys, name="key")


@keys.command("create")
@on_a_gateway
def create_key(
    gateway: GatewayAccess,
    name: Annotated[str, typer.Option(help="What to call it: shown in lists and used to revoke it.")],
    tenant: Annotated[str, typer.Option(help="Whom it belongs to.")] = DEFAULT_TENANT,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            "--model",
            help="Models it may ask for, shell patterns; an alias counts by its own name. Repeatable. "
            "[default: every model]",
            metavar="A,B",
        ),
    ] = None,
    routes: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Kinds of requests: {', '.join(route for route in ROUTES if route != ANY_ROUTE)}; "
            f"{ANY_ROUTE} for /engines/…. Repeatable. [default: every route; any not with --models or limits "
            "in tokens]",
            metavar="A,B",
        ),
    ] = None,
    tiers: Annotated[
        list[str] | None,
        typer.Option(help="realtime, standard, batch. Repeatable. [default: every tier]", metavar="A,B"),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Its requests run only on agents with this label. Of values of one label any will do; all "
            "labels must be right. Repeatable. [default: anywhere]",
            metavar="K=V[,K=V]",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="How long it works: 24h, 30d … [default: for ever]", metavar="DURATION")
    ] = None,
    role: Annotated[
        AdminRole | None,
        typer.Option(
            help="What it may do on the admin API; an operator may also manage engines by their own paths. "
            "[default: nothing]"
        ),
    ] = None,
    rpm: RpmOption = None,
    tpm: TpmOption = None,
    concurrency: ConcurrencyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an API key and print it as the last line. It is shown this once.

    Example: trunkline key create --name laptop --models 'llama-*' --expires 30d
    """
    only = _where(where)
    made = gateway.do(
        "create_key",
        name=name,
        tenant=tenant,
        models=listed(models),
        routes=listed(routes),
        tiers=listed(tiers),
        where=None if only is None else only.to_dict(),
        role=None if role is None else role.value,
        life_s=None if expires is None else duration_s(expires),
        **rates_of(rpm=rpm, tpm=tpm, concurrency=concurrency),
    )
    if as_json:
        print_json(made)
        return
    note(f"API key {name!r} of tenant {tenant!r}{_limits_told(made)}.")
    note("Only its hash is kept: store it now, it is not shown again.")
    print(made["key"])  # noqa: T201


@keys.command("set")
@on_a_gateway
def set_key(
    gateway: GatewayAccess,
    name: NameArgument,
    rpm: RpmOption = None,
    tpm: TpmOption = None,
    concurrency: ConcurrencyOption = None,
    routes: Annotated[
        list[str] | None,
        typer.Option(help="Kinds of requests, as for create; all: every kind. Repeatable.", metavar="A,B"),
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="viewer, operator or admin; none: no role.", metavar="ROLE")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give an API key other limits, routes or a role, from the next request on. What is not named stays.

    Example: trunkline key set laptop --rpm 60 --tpm 100000 --concurrency 4 --routes any,chat
    """
    changes = given(rpm=rpm, tpm=tpm, concurrency=concurrency)
    if routes:
        changes["routes"] = None if routes == ["all"] else listed(routes)
    if role is not None:
        changes["role"] = _role(role)
    if not changes:
        raise typer.BadParameter("say what: --rpm, --tpm, --concurrency, --routes or --role")
    facts = gateway.do("set_key", name, **changes)
    if as_json:
        print_json(facts)
        return
    told_of = " ".join(filter(None, (_scopes_text(facts), _rates_text(facts))))
    note(f"API key {facts['name']!r}: {told_of or 'no limits'}, role {facts['role'] or 'none'}.")


@keys.command("list")
@on_a_gateway
def list_keys(gateway: GatewayAccess, as_json: JsonOption = False) -> None:
    """List API keys: names, states, limits and last use, never the keys.

    Example: trunkline key list --json
    """
    found = gateway.do("list_keys")["keys"]
    if as_json:
        print_json(found)
        return
    columns = ["NAME", "TENANT", "STATE", "KEY", "CREATED", "EXPIRES", "LAST USED", "ROLE", "LIMITS", "WHERE"]
    print_table(columns, [_row(facts) for facts in found], "no API keys")


@keys.command("rotate")
@on_a_gateway
def rotate_key(
    gateway: GatewayAccess,
    name: NameArgument,
    overlap: Annotated[
        str, typer.Option(help="How long the old secret works beside the new one.", metavar="DURATION")
    ] = "24h",
    as_json: JsonOption = False,
) -> None:
    """Give an API key another secret and print it as the last line. It is shown this once.

    The old one works until the overlap ends (0s: no longer); one from a rotation before that ends now.

    Example: trunkline key rotate laptop --overlap 24h
    """
    made = gateway.do("rotate_key", name, overlap_s=duration_s(overlap, "--overlap"))
    if as_json:
        print_json(made)
        return
    until_s = made["old_secret_until_s"]
    old = "no longer works" if until_s is None else f"works until {moment(until_s)}"
    note(
        f"API key {made['name']!r} has a new secret; the old one {old}. Store it now, it is not shown again."
    )
    print(made["key"])  # noqa: T201


@keys.command("revoke")
@on_a_gateway
def revoke_key(gateway: GatewayAccess, name: NameArgument) -> None:
    """Revoke an API key. A running gateway refuses it from the next request on.

    Example: trunkline key revoke laptop
    """
    note(f"API key {gateway.do('revoke_key', name)['name']!r} is revoked.")


def _row(facts: dict[str, Any]) -> list[str]:
    return [
        facts["name"],
        facts["tenant"],
        facts["state"],
        f"sk-tl-…{facts['hint']}",
        moment(facts["created_s"]),
        "never" if facts["expires_s"] is None else moment(facts["expires_s"]),
        "never" if facts["last_used_s"] is None else moment(facts["last_used_s"]),
        facts["role"] or "",
        " ".join(filter(None, (_scopes_text(facts), _rates_text(facts)))),
        _where_text(facts),
    ]


def _scopes_text(facts: dict[str, Any]) -> str:
    names = ("models", "routes", "tiers")
    return " ".join(f"{name}={','.join(facts[name])}" for name in names if facts[name] is not None)


def _rates_text(facts: dict[str, Any]) -> str:
    return told({name: facts[name] for name in ("rpm", "tpm", "concurrency")})


def _where_text(facts: dict[str, Any]) -> str:
    found = facts["where"] or {}
    return ",".join(f"{name}={value}" for name, values in found.items() for value in values)


def _limits_told(facts: dict[str, Any]) -> str:
    limits, rates, where = _scopes_text(facts), _rates_text(facts), _where_text(facts)
    return "".join(
        (
            f", for {limits}" if limits else "",
            f", at {rates} at most" if rates else "",
            f", for agents with {where} only" if where else "",
            "" if facts["role"] is None else f", {facts['role']} on the admin API",
            "" if facts["expires_s"] is None else f", until {moment(facts['expires_s'])}",
        )
    )


def _role(text: str) -> str | None:
    """Raises typer.BadParameter."""
    if text == "none":
        return None
    if text not in tuple(AdminRole):
        raise typer.BadParameter(f"{text!r} is none of {', '.join(AdminRole)}, none", param_hint="--role")
    return text


def _where(texts: list[str] | None) -> Residency | None:
    """Raises typer.BadParameter."""
    try:
        return read_where(",".join(texts)) if texts else None
    except BadResidency as error:
        raise typer.BadParameter(str(error), param_hint="--where") from None
