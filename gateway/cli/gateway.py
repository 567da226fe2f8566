"""``trunkline gateway``: run one, and look at its settings."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gateway.cli.options import ClusterKeyOption, StoreOption, StorePasswordOption
from gateway.cli_support.console import fail, note
from gateway.domain.scopes import AdminRole
from gateway.domain.state_dir import own_state_dir
from gateway.domain.urls import is_own
from gateway.runtime.config import (
    CONFIG_VARIABLE,
    DEFAULT_LISTEN,
    ConfigError,
    Loaded,
    Settings,
    load,
)
from gateway.runtime.workers.role import worker_count
from shared.process.command_line import CommandApp
from shared.process.startup import program_version, without_collection, without_optional

if TYPE_CHECKING:
    from gateway.storage import Store

FIRST_KEY = "first"
FIRST_KEY_FILE = "first-admin-key"

app = CommandApp(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", envvar=CONFIG_VARIABLE, help="A TOML file.", metavar="FILE")
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        envvar="TRUNKLINE_STATE",
        help="State directory. Default: $XDG_STATE_HOME/trunkline or ~/.local/state/trunkline; "
        "for root /var/lib/trunkline if it exists.",
    ),
]
SharedOption = Annotated[
    str | None,
    typer.Option(
        help="Keep limits together with other gateways, in Redis, Valkey or PostgreSQL.", metavar="URL"
    ),
]

UplinkOption = Annotated[
    str | None, typer.Option(help="Serve another gateway as its agent, too.", metavar="URL")
]
JoinOption = Annotated[
    str | None,
    typer.Option(help="Join token made at that gateway; needed the first time only.", metavar="TOKEN"),
]


def register(parent: typer.Typer) -> None:
    """Add ``gateway`` to a command line."""
    parent.add_typer(app, name="gateway")


@app.callback(invoke_without_command=True)
def gateway(
    context: typer.Context,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Default: {DEFAULT_LISTEN}.")
    ] = None,
    state: StateOption = None,
    store: StoreOption = None,
    cluster_key: ClusterKeyOption = None,
    store_password_file: StorePasswordOption = None,
    config: ConfigOption = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.", metavar="FILE")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.", metavar="FILE")] = None,
    behind_tls_terminator: Annotated[
        bool | None,
        typer.Option(
            "--behind-tls-terminator",
            help="Listen beyond this machine without TLS, because something in front ends it.",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Processes that serve; auto: one for each core. Default: 1.", metavar="N"),
    ] = None,
    shared: SharedOption = None,
    uplink: UplinkOption = None,
    join: JoinOption = None,
    drain_s: Annotated[
        float | None, typer.Option(help="Seconds that streams may go on once told to stop.", metavar="S")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="text, json, or auto: text on a terminal.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run a gateway: clients and agents both come to this one address.

    The first SIGTERM or Ctrl-C lets streams finish, the second ends them. All settings:
    trunkline gateway config --show

    Example: trunkline gateway --listen 127.0.0.1:8700 --state ~/trunkline
    """
    flags = _flags(
        listen=listen,
        state=state,
        store=_flags(url=store, password_file=store_password_file),
        cluster=_flags(key=cluster_key),
        behind_tls_terminator=behind_tls_terminator or None,
        workers=workers,
        shared=shared,
        drain_s=drain_s,
        uplink=_flags(url=uplink, join=join),
        tls=_flags(cert=tls_cert, key=tls_key),
        log=_flags(level=log_level, style=log_format),
    )
    if context.invoked_subcommand is not None:
        context.obj = (flags, config)
        return
    settings = _load(flags, config).settings
    if settings.workers != 1 and (count := worker_count(settings)) > 1:
        _supervise(settings, count, flags, config)
    else:
        _serve(settings, lambda: load(flags, config).settings)


@app.command("config")
def config_command(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--show", help="Print the effective settings as TOML.")] = False,
    config: ConfigOption = None,
) -> None:
    """Check the settings; with --show print them and where each comes from.

    Example: trunkline gateway config --show
    """
    flags, outer = context.obj
    loaded = _load(flags, config or outer)
    if show:
        print(loaded.toml(_by_variable(context.parent)))  # noqa: T201
    else:
        note("The settings are valid; --show prints them.")


def _by_variable(context: Any) -> dict[str, str]:
    """Settings whose options were given by variables, with what is said of where they come from. ``context``
    is that of ``trunkline gateway``, None where there is none."""
    named = {
        "state": "state",
        "store": "store.url",
        "store_password_file": "store.password_file",
        "cluster_key": "cluster.key",
    }
    return {
        path: f"environment TRUNKLINE_{name.upper()}"
        for name, path in named.items()
        if context is not None and getattr(context.get_parameter_source(name), "name", "") == "ENVIRONMENT"
    }


def _flags(**given: Any) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in given.items() if value is not None and value != {}}


def _load(flags: dict[str, Any], config: Path | None) -> Loaded:
    try:
        return load(flags, config)
    except ConfigError as error:
        _wrong_usage(error)


def _wrong_usage(error: Exception) -> NoReturn:
    note(f"trunkline gateway: {error}")
    raise typer.Exit(2) from None


def _serve(settings: Settings, again: Callable[[], Settings]) -> None:
    from shared.speedups import use_huge_pages

    use_huge_pages()
    with without_collection(), without_optional("rich"):
        from gateway.app.run import run
        from gateway.observability.logging import configure
        from gateway.runtime.listeners import ListenFailed
        from gateway.storage.errors import StateError

    configure(settings.log.level, settings.log.style)
    state_dir = settings.state or own_state_dir()
    try:
        run(settings, state_dir, lambda url, store: announce(url, store, settings), again)
    except ConfigError as error:
        _wrong_usage(error)
    except (StateError, ListenFailed) as error:
        fail(str(error))


def _supervise(settings: Settings, count: int, flags: dict[str, Any], config: Path | None) -> NoReturn:
    """Little is imported: a supervisor does nothing of what a gateway does."""
    with without_collection(), without_optional("rich"):
        from gateway.observability.logging import configure
        from gateway.runtime.listeners import ListenFailed
        from gateway.runtime.workers.run import NotStarted, run_workers

    configure(settings.log.level, settings.log.style)
    state_dir = settings.state or own_state_dir()
    try:
        status = run_workers(settings, state_dir, count, flags, config)
    except (NotStarted, ListenFailed) as error:
        fail(str(error))
    raise typer.Exit(status)


def announce(url: str, store: "Store", settings: Settings, workers: int = 1) -> None:
    """Where it listens, where its state is, and what to do next."""
    state = store.state_dir.absolute()
    seen_as = url if is_own(settings.address[0]) else _public_url(url)
    note(f"trunkline gateway {program_version()}")
    note(f"  listens     {url}")
    note(f"  for clients base URL {seen_as}/v1")
    if workers > 1:
        note(f"  workers     {workers}")
    note(f"  state       {state}")
    if store.address is not None:
        note(f"  store       {store.address}")
    note(f"  add a GPU   trunkline token create --state {state}")
    note(f"              then on its host: trunkline agent --gateway {seen_as} --join TOKEN")
    for line in _first_key_lines(store, state):
        note(line)


def _first_key_lines(store: "Store", state: Path) -> list[str]:
    """A store that cannot be asked just now keeps no gateway from serving."""
    from gateway.storage.errors import StateError

    try:
        key = first_key(store)
    except StateError as error:
        return [f"  API key     not known whether there is one: {error}"]
    return [] if key is None else _key_lines(key, state)


def _key_lines(key: str, state: Path) -> list[str]:
    """How the first key reaches the person who starts the gateway: on a terminal it is shown; anything else
    keeps what it is told (a journal, a file), so there only the name of a file is."""
    others = "              for everybody else: trunkline key create --name NAME"
    if sys.stderr.isatty():
        shown = f"              named {FIRST_KEY!r}, an admin's, shown this once;"
        return [f"  API key     {key}", shown, others]
    path = state / FIRST_KEY_FILE
    try:
        write_secret(path, key)
    except OSError as error:
        remedy = f"trunkline key create --role admin --name NAME --state {state}"
        return [f"  API key     cannot be written to {path} ({error.strerror}); make one with: {remedy}"]
    return [f"  API key     {path} has the first one, an admin's: take it from there and remove the file"]


def write_secret(path: Path, text: str) -> None:
    """A line in a new file for its owner only, in place of one that lies there. Raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w") as opened:
        opened.write(f"{text}\n")
        opened.flush()
        os.fsync(opened.fileno())
    fresh.replace(path)


def _public_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"https://YOUR-HOST:{rest.rpartition(':')[2]}" if scheme == "https" else "https://YOUR-HOST"


def first_key(store: "Store") -> str | None:
    """A key to begin with, if this state never had any."""
    from gateway.storage import DEFAULT_TENANT
    from gateway.storage.errors import NameTaken

    if not store.keys.is_empty():
        return None
    try:
        return store.keys.create(FIRST_KEY, DEFAULT_TENANT, time.time(), role=AdminRole.ADMIN)
    except NameTaken:
        return None
