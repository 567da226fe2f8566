"""The command ``trunkline``: a root that knows no command itself.

Each package registers its own through the entry point group ``trunkline.commands``, whose members are
functions ``commands(app: typer.Typer) -> None``; so this file imports neither the gateway nor the agent.
"""

from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated

import typer

from shared.imports import without_collection

GROUP = "trunkline.commands"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trunkline {version('trunkline')}")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One endpoint in front of every GPU you own: agents dial out, clients use any OpenAI SDK."""


def _registered() -> list[EntryPoint]:
    """Every package's registration once, in a fixed order so that ``--help`` is the same everywhere."""
    return sorted(set(entry_points(group=GROUP)), key=lambda entry: entry.name, reverse=True)


def build() -> typer.Typer:
    """The whole command line, commands of every installed package included."""
    app = typer.Typer(
        name="trunkline",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    with without_collection():
        for entry in _registered():
            entry.load()(app)
    return app


def main() -> None:
    """Entry point of the console script. Exit codes: 0 done, 1 failed, 2 wrong usage."""
    build()()


if __name__ == "__main__":
    main()
