"""``trunkline key``: API keys, which let clients in."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from gateway.access.facts import key_facts
from gateway.cli_limits import ConcurrencyOption, RpmOption, TpmOption, given, rates_of, told
from gateway.cli_output import moment, note, print_json, print_table
from gateway.cli_state import JsonOption, StateOption, duration_s, opened
from gateway.scopes import Role, Scopes, limited
from gateway.store import DEFAULT_TENANT, KeyRecord
from gateway.where import BadWhere, Where, read_where

keys = typer.Typer(no_args_is_help=True, help="API keys for clients.")

NameArgument = Annotated[str, typer.Argument(help="Its name or id.")]


def register(app: typer.Typer) -> None:
    """Add ``key`` to a command line."""
    app.add_typer(keys, name="key")


@keys.command("create")
def create_key(
    state: StateOption,
    name: Annotated[str, typer.Option(help="What to call it: shown in lists and used to revoke it.")],
    tenant: Annotated[str, typer.Option(help="Whom it belongs to.")] = DEFAULT_TENANT,
    models: Annotated[
        list[str] | None,
        typer.Option(
            help="Models it may ask for, shell patterns; an alias counts by its own name. Repeatable. "
            "[default: every model]",
            metavar="A,B",
        ),
    ] = None,
    routes: Annotated[
        list[str] | None,
        typer.Option(
            help="Kinds of requests: chat, completions, responses, embeddings, rerank, messages, audio, "
            "images; any for /engines/…. Repeatable. [default: every route; of a key with --models not any]",
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
        Role | None,
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

    Example: export OPENAI_API_KEY=$(trunkline key create --name laptop --models 'llama-*' --expires 30d)
    """
    only, scopes = _where(where), limited(_listed(models), _listed(routes), _listed(tiers))
    life_s = None if expires is None else duration_s(expires)
    now_s = time.time()
    with opened(state, create=True) as store:
        rates = rates_of(rpm=rpm, tpm=tpm, concurrency=concurrency)
        text = store.keys.create(
            name, tenant, now_s, only, scopes=scopes, role=role, life_s=life_s, rates=rates
        )
        record = store.keys.get(name)
    if as_json:
        print_json({"key": text, **key_facts(record, now_s)})
        return
    note(f"API key {name!r} of tenant {tenant!r}{_limits_told(record)}.")
    note("Only its hash is kept: store it now, it is not shown again.")
    print(text)  # noqa: T201


@keys.command("set")
def set_key(
    name: NameArgument,
    state: StateOption,
    rpm: RpmOption = None,
    tpm: TpmOption = None,
    concurrency: ConcurrencyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give an API key other limits, from the next request on. What is not named stays as it is.

    Example: trunkline key set laptop --rpm 60 --tpm 100000 --concurrency 4
    """
    changes = given(rpm=rpm, tpm=tpm, concurrency=concurrency)
    if not changes:
        raise typer.BadParameter("say at least one limit: --rpm, --tpm or --concurrency")
    with opened(state) as store:
        record = store.keys.set_rates(name, changes)
    if as_json:
        print_json(key_facts(record, time.time()))
        return
    note(f"API key {record.name!r}: {_rates_text(record) or 'no limits'}.")


@keys.command("list")
def list_keys(state: StateOption, as_json: JsonOption = False) -> None:
    """List API keys: names, states, limits and last use, never the keys.

    Example: trunkline key list --json
    """
    now_s = time.time()
    with opened(state) as store:
        records = store.keys.list()
    if as_json:
        print_json([key_facts(record, now_s) for record in records])
        return
    columns = ["NAME", "TENANT", "STATE", "KEY", "CREATED", "EXPIRES", "LAST USED", "ROLE", "LIMITS", "WHERE"]
    print_table(columns, [_row(record, now_s) for record in records], "no API keys")


@keys.command("rotate")
def rotate_key(
    name: NameArgument,
    state: StateOption,
    overlap: Annotated[
        str, typer.Option(help="How long the old secret works beside the new one.", metavar="DURATION")
    ] = "24h",
    as_json: JsonOption = False,
) -> None:
    """Give an API key another secret and print it as the last line. It is shown this once.

    The old one works until the overlap ends (0s: no longer); one from a rotation before that ends now.

    Example: trunkline key rotate laptop --overlap 24h
    """
    now_s = time.time()
    with opened(state) as store:
        record, text = store.keys.rotate(name, duration_s(overlap, "--overlap"), now_s)
    if as_json:
        print_json({"key": text, **key_facts(record, now_s)})
        return
    until_s = record.previous_until_s
    old = "no longer works" if until_s is None else f"works until {moment(until_s)}"
    note(f"API key {record.name!r} has a new secret; the old one {old}. Store it now, it is not shown again.")
    print(text)  # noqa: T201


@keys.command("revoke")
def revoke_key(name: NameArgument, state: StateOption) -> None:
    """Revoke an API key. A running gateway refuses it from the next request on.

    Example: trunkline key revoke laptop
    """
    with opened(state) as store:
        record = store.keys.revoke(name, time.time())
    note(f"API key {record.name!r} is revoked.")


def _row(record: KeyRecord, wall_s: float) -> list[str]:
    return [
        record.name,
        record.tenant,
        record.state(wall_s).value,
        f"sk-tl-…{record.hint}",
        moment(record.created_s),
        "never" if record.expires_s is None else moment(record.expires_s),
        "never" if record.last_used_s is None else moment(record.last_used_s),
        record.role or "",
        " ".join(filter(None, (_scopes_text(record.scopes), _rates_text(record)))),
        "" if record.where is None else str(record.where),
    ]


def _scopes_text(scopes: Scopes | None) -> str:
    found = {} if scopes is None else scopes.to_dict()
    return " ".join(f"{name}={','.join(values)}" for name, values in found.items())


def _rates_text(record: KeyRecord) -> str:
    return "" if record.rates is None else told(asdict(record.rates))


def _limits_told(record: KeyRecord) -> str:
    limits, rates = _scopes_text(record.scopes), _rates_text(record)
    return "".join(
        (
            f", for {limits}" if limits else "",
            f", at {rates} at most" if rates else "",
            "" if record.where is None else f", for agents with {record.where} only",
            "" if record.role is None else f", {record.role} on the admin API",
            "" if record.expires_s is None else f", until {moment(record.expires_s)}",
        )
    )


def _listed(texts: list[str] | None) -> list[str] | None:
    """The values in options that may be repeated and hold several, separated by commas."""
    return None if texts is None else [part.strip() for text in texts for part in text.split(",")]


def _where(texts: list[str] | None) -> Where | None:
    """Raises typer.BadParameter."""
    try:
        return read_where(",".join(texts)) if texts else None
    except BadWhere as error:
        raise typer.BadParameter(str(error), param_hint="--where") from None
