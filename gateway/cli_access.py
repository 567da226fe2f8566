"""The commands about who may do what: ``trunkline token``, ``key`` and ``agents``.

They work on the state directory itself, whether or not a gateway runs on it, and a running one acts on
them at once. Explanations go to stderr, data to stdout; exit 0 done, 1 failed, 2 wrong usage (SURFACE).
"""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli_output import fail, moment, note, print_json, print_table
from gateway.store import (
    DEFAULT_TENANT,
    AgentRecord,
    KeyRecord,
    Store,
    TokenRecord,
    TokenState,
    own_state_dir,
)
from gateway.store.errors import BadValue, RecordError, StateError
from gateway.where import BadWhere, Where, read_where
from shared.errors import JoinTokenInvalid

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhdw])")

StateOption = Annotated[
    Path,
    typer.Option(
        "--state",
        envvar="TRUNKLINE_STATE",
        default_factory=own_state_dir,
        show_default="$XDG_STATE_HOME/trunkline or ~/.local/state/trunkline; for root /var/lib/trunkline",
        help="The gateway's state directory.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def duration_s(text: str) -> float:
    """Seconds in ``90s``, ``30m``, ``24h``, ``7d`` or ``2w``. Raises typer.BadParameter."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no duration; write for example 30m, 24h or 7d", param_hint="--expires"
        )
    return float(match[1]) * _UNITS_S[match[2]]


def labels_of(pairs: list[str]) -> dict[str, str]:
    """The labels in ``k=v`` texts. Raises typer.BadParameter."""
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name in labels:
            problem = "is given twice" if equals else "is no label; write k=v"
            raise typer.BadParameter(f"{pair!r} {problem}", param_hint="--label")
        labels[name] = value
    return labels


@contextlib.contextmanager
def opened(state: Path, *, create: bool = False) -> Iterator[Store]:
    """The store, with its errors as exit codes: 2 for values it does not take, 1 for the rest."""
    try:
        with Store.open(state, create=create) as store:
            yield store
    except BadValue as error:
        raise typer.BadParameter(str(error)) from error
    except (StateError, RecordError, JoinTokenInvalid) as error:
        fail(str(error))


tokens = typer.Typer(no_args_is_help=True, help="Join tokens: what lets a GPU host become an agent.")
keys = typer.Typer(no_args_is_help=True, help="API keys for clients.")
agents = typer.Typer(help="The agents that joined.")


def register(app: typer.Typer) -> None:
    """Add ``token``, ``key`` and ``agents`` to a command line."""
    app.add_typer(tokens, name="token")
    app.add_typer(keys, name="key")
    app.add_typer(agents, name="agents")


# --- trunkline token ---


@tokens.command("create")
def create_token(
    state: StateOption,
    expires: Annotated[
        str, typer.Option(help="How long it can be used: 30m, 24h, 7d …", metavar="DURATION")
    ] = "24h",
    uses: Annotated[int, typer.Option(help="How many agents may join with it.")] = 1,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Models its agents may serve, a shell pattern. Repeatable. [default: every model]"),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="A label for its agents, k=v. Repeatable.", metavar="K=V")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a join token and print it as the last line.

    Example: trunkline token create --uses 8 --expires 7d --model 'llama-*' --label region=eu
    """
    models, labels, life_s, now_s = model or ["*"], labels_of(label or []), duration_s(expires), time.time()
    with opened(state, create=True) as store:
        token, text = store.tokens.create(life_s, uses, models, labels, now_s)
        record = store.tokens.get(token.id_text)
        assert record is not None
    if as_json:
        print_json({"token": text, **_token_facts(record, now_s)})
        return
    agents_text = "one agent" if uses == 1 else f"{uses} agents"
    note(f"Join token {record.id}, for {agents_text}, until {moment(record.expires_s)}. On the GPU host run:")
    note("  trunkline agent --gateway URL --join TOKEN")
    print(text)  # noqa: T201


@tokens.command("list")
def list_tokens(state: StateOption, as_json: JsonOption = False) -> None:
    """List join tokens. Their secrets are not kept, so they cannot be shown.

    Example: trunkline token list --json
    """
    now_s = time.time()
    with opened(state) as store:
        records = store.tokens.list()
    if as_json:
        print_json([_token_facts(record, now_s) for record in records])
        return
    rows = [
        [
            record.id,
            record.state(now_s).value,
            f"{record.uses}/{record.uses_allowed}",
            moment(record.expires_s),
            " ".join(record.models),
            _label_text(record.labels),
        ]
        for record in records
    ]
    print_table(["ID", "STATE", "USES", "EXPIRES", "MODELS", "LABELS"], rows, "no join tokens")


@tokens.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(help="Its id, the beginning of its id, or the token itself.")],
    state: StateOption,
) -> None:
    """Revoke a join token. Agents that joined with it stay.

    Example: trunkline token revoke 3fa9
    """
    with opened(state) as store:
        record = store.tokens.revoke(token, time.time())
    note(f"Join token {record.id} is revoked. {_used(record)}")


def _used(record: TokenRecord) -> str:
    if record.uses == 0:
        return "No agent had joined with it."
    joined = "1 agent" if record.uses == 1 else f"{record.uses} agents"
    return f"{joined} had joined with it and can still connect; see: trunkline agents list"


def _token_facts(record: TokenRecord, wall_s: float) -> dict[str, Any]:
    return {
        "id": record.id,
        "state": record.state(wall_s).value,
        "uses": record.uses,
        "uses_allowed": record.uses_allowed,
        "created_s": record.created_s,
        "expires_s": record.expires_s,
        "revoked_s": record.revoked_s,
        "models": list(record.models),
        "labels": dict(record.labels),
    }


# --- trunkline key ---


@keys.command("create")
def create_key(
    state: StateOption,
    name: Annotated[str, typer.Option(help="What to call it: shown in lists and used to revoke it.")],
    tenant: Annotated[str, typer.Option(help="Whom it belongs to.")] = DEFAULT_TENANT,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Its requests run only on agents with this label. Of values of one label any will do; all "
            "labels must be right. Repeatable. [default: anywhere]",
            metavar="K=V[,K=V]",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an API key and print it as the last line. It is shown this once.

    Example: export OPENAI_API_KEY=$(trunkline key create --name laptop --where region=eu)
    """
    only = _where(where)
    with opened(state, create=True) as store:
        text = store.keys.create(name, tenant, time.time(), only)
    if as_json:
        print_json({"key": text, "name": name, "tenant": tenant, "where": only and only.to_dict()})
        return
    where_text = "" if only is None else f", for agents with {only} only"
    note(
        f"API key {name!r} of tenant {tenant!r}{where_text}. Only its hash is kept: "
        "store it now, it is not shown again."
    )
    print(text)  # noqa: T201


@keys.command("list")
def list_keys(state: StateOption, as_json: JsonOption = False) -> None:
    """List API keys: names and states, never the keys.

    Example: trunkline key list --json
    """
    with opened(state) as store:
        records = store.keys.list()
    if as_json:
        print_json([_key_facts(record) for record in records])
        return
    rows = [
        [
            record.name,
            record.tenant,
            "active" if record.revoked_s is None else "revoked",
            f"sk-tl-…{record.hint}",
            moment(record.created_s),
            "" if record.where is None else str(record.where),
        ]
        for record in records
    ]
    print_table(["NAME", "TENANT", "STATE", "KEY", "CREATED", "WHERE"], rows, "no API keys")


@keys.command("revoke")
def revoke_key(
    name: Annotated[str, typer.Argument(help="Its name.")],
    state: StateOption,
) -> None:
    """Revoke an API key. A running gateway refuses it from the next request on.

    Example: trunkline key revoke laptop
    """
    with opened(state) as store:
        record = store.keys.revoke(name, time.time())
    note(f"API key {record.name!r} is revoked.")


def _where(texts: list[str] | None) -> Where | None:
    """Raises typer.BadParameter."""
    try:
        return read_where(",".join(texts)) if texts else None
    except BadWhere as error:
        raise typer.BadParameter(str(error), param_hint="--where") from None


def _key_facts(record: KeyRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "tenant": record.tenant,
        "state": "active" if record.revoked_s is None else "revoked",
        "hint": record.hint,
        "created_s": record.created_s,
        "revoked_s": record.revoked_s,
        "where": record.where and record.where.to_dict(),
    }


# --- trunkline agents ---


@agents.callback(invoke_without_command=True)
def agents_default(context: typer.Context, state: StateOption, as_json: JsonOption = False) -> None:
    """The agents that joined. Without a command: list them."""
    if context.invoked_subcommand is None:
        list_agents(state, as_json)
        return
    for name, option in (("state", "--state"), ("as_json", "--json")):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"put it after {context.invoked_subcommand!r}", param_hint=option)


@agents.command("list")
def list_agents(state: StateOption, as_json: JsonOption = False) -> None:
    """List the agents that joined, what they may serve and when they were last seen.

    Example: trunkline agents list --json
    """
    with opened(state) as store:
        records = store.agents.list()
    if as_json:
        print_json([_agent_facts(record) for record in records])
        return
    rows = [
        [
            record.name,
            "active" if record.revoked_s is None else "revoked",
            " ".join(record.models),
            _label_text(record.labels),
            moment(record.joined_s),
            "never" if record.last_seen_s is None else moment(record.last_seen_s),
        ]
        for record in records
    ]
    print_table(["NAME", "STATE", "MODELS", "LABELS", "JOINED", "LAST SEEN"], rows, "no agents have joined")


@agents.command("revoke")
def revoke_agent(
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    state: StateOption,
    reason: Annotated[str, typer.Option(help="Why: the agent is told, and the list keeps it.")] = "",
) -> None:
    """Revoke an agent: its tunnel ends at once, its key never comes back. Its name is free again.

    Example: trunkline agents revoke gpu-7 --reason 'host sold'
    """
    with opened(state) as store:
        record = store.agents.revoke(name, reason, time.time())
        token = store.tokens.get(record.token_id)
    note(f"Agent {record.name!r} is revoked.")
    if token is not None and token.state(time.time()) is TokenState.ACTIVE:
        left = token.uses_allowed - token.uses
        note(
            f"The join token it used still lets {left} in. If that host must stay out: "
            f"trunkline token revoke {token.id}"
        )


def _agent_facts(record: AgentRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "state": "active" if record.revoked_s is None else "revoked",
        "models": list(record.models),
        "labels": dict(record.labels),
        "token": record.token_id,
        "joined_s": record.joined_s,
        "last_seen_s": record.last_seen_s,
        "certificate_expires_s": max(record.certificates.values(), default=None),
        "revoked_s": record.revoked_s,
        "revoked_reason": record.revoked_reason,
    }


def _label_text(labels: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))
