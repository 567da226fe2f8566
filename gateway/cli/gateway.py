"""``trunkline gateway``: run one, and look at its settings."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gateway.cli.announcement import announce
from gateway.cli.options import ClusterKeyOption, StoreOption, StorePasswordOption
from gateway.cli_support.console import fail, note
from gateway.domain.state_dir import own_state_dir
from gateway.runtime.config import (
    CONFIG_VARIABLE,
    DEFAULT_LISTEN,
    ConfigError,
    Loaded,
    Settings,
    load,
)
from gateway.runtime.workers.settings import worker_count
from shared.process.command_line import CommandApp
from shared.process.startup import without_collection, without_optional

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
    settings = _load_to_run(flags, config)
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


def _load_to_run(flags: dict[str, Any], config: Path | None) -> Settings:
    """A SIGHUP ends nothing from now on; it is ignored until the settings could be read again."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return _load(flags, config).settings


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
    """Little is imported before the address and the state are had: a supervisor needs of what a gateway does
    only what its workers, which are forks of it, begin with."""
    with without_collection(), without_optional("rich"):
        from gateway.cli import worker
        from gateway.observability.logging import configure
        from gateway.runtime.listeners import ListenFailed
        from gateway.runtime.workers.run import NotStarted, run_workers

    configure(settings.log.level, settings.log.style)
    state_dir = settings.state or own_state_dir()
    try:
        status = run_workers(settings, state_dir, count, flags, config, worker.prepare)
    except (NotStarted, ListenFailed) as error:
        fail(str(error))
    raise typer.Exit(status)
