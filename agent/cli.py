"""``trunkline agent``; ``python -m agent`` is the same. Exit codes: 0 done, 1 failed, 2 wrong usage."""

from pathlib import Path
from typing import Annotated, Any

import typer

from shared.process.cli import RootGroup
from shared.process.command_line import CommandApp

Flags = dict[str, Any]

Gateway = Annotated[
    str | None,
    typer.Option(
        "--gateway", "--url", help="The gateway's URL: https://HOST[:PORT]; http:// on loopback only."
    ),
]
Join = Annotated[
    str | None, typer.Option(help="Join token (`trunkline token create`); needed the first time only.")
]
Engines = Annotated[
    list[str] | None, typer.Option(help="URL of a running engine with an OpenAI API. May be repeated.")
]
Models = Annotated[
    list[str] | None,
    typer.Option(help="Serve this Hugging Face model directory, or 'demo', with the built-in engine."),
]
Python = Annotated[
    list[str] | None,
    typer.Option(help="Serve a model of your own, a class in Python: module:Class. May be repeated."),
]
Device = Annotated[
    str | None,
    typer.Option(help="For --torch: cpu, cuda or cuda:1; cuda:0,cuda:1 for an engine on each."),
]
Devices = Annotated[
    str | None,
    typer.Option(help="For --python: GPUs by number (0,1), or cpu. Default: the first GPU, else the CPU."),
]
Workflows = Annotated[
    Path | None,
    typer.Option(help="For --engine comfyui:http://…: a directory with workflows, each a file NAME.json."),
]
State = Annotated[Path | None, typer.Option(help="Where the agent keeps its key and certificate.")]
Name = Annotated[
    str | None, typer.Option(help="The agent's name. Default: the host's, or the one it joined with.")
]
Slots = Annotated[
    int | None, typer.Option(help="Requests an engine may have at once. Default: what it says itself.")
]
FindEngines = Annotated[
    bool | None,
    typer.Option(
        "--find-engines/--no-find-engines",
        help="Look for engines on the usual local ports. Default: when none is named.",
    ),
]
DrainSeconds = Annotated[
    float | None, typer.Option(help="Seconds that running requests may take to finish when stopping.")
]


def commands(root: RootGroup) -> None:
    """Add the agent's command (entry point ``trunkline.commands``). Imported when it is used."""
    root.later("agent.cli", {"agent": "Run an agent: serve this host's engines through a gateway."})
    root.checks("agent", "agent.diagnosis.host")


def register(app: typer.Typer) -> None:
    """Add ``agent`` to a command line."""
    app.command("agent")(agent)


def agent(
    gateway: Gateway = None,
    join: Join = None,
    engine: Engines = None,
    torch: Models = None,
    device: Device = None,
    python: Python = None,
    devices: Devices = None,
    workflows: Workflows = None,
    state: State = None,
    name: Name = None,
    slots: Slots = None,
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE. May be repeated.")] = None,
    find_engines: FindEngines = None,
    drain_s: DrainSeconds = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust for the gateway's TLS.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text, json, or auto: text on a terminal.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run an agent: dial out to a gateway and serve this host's engines through it.

    The token is needed the first time only. Without --engine, engines on the usual local ports are found.
    Every setting may come from the environment as well, where secrets are not seen in the list of processes:
    TRUNKLINE_AGENT_JOIN, TRUNKLINE_AGENT_ENGINE_KEY.

    Example: trunkline agent --gateway https://llm.example.com --join tlj_… --engine http://localhost:8000
    """
    flags: Flags = {
        "gateway": gateway,
        "join": join,
        "state": state,
        "name": name,
        "slots": slots,
        "engine": [
            *({"url": url} | _of_comfyui(url, workflows) for url in engine or ()),
            *({"torch": model} | ({"device": device} if device else {}) for model in torch or ()),
            *({"python": spec} | ({"devices": devices} if devices else {}) for spec in python or ()),
        ],
        "labels": label,
        "find_engines": find_engines,
        "drain_s": drain_s,
        "ca_file": ca_file,
        "log_format": log_format,
        "log_level": log_level,
    }
    given = {key: value for key, value in flags.items() if value not in (None, [])}
    raise typer.Exit(run(given, config))


def _of_comfyui(url: str, workflows: Path | None) -> Flags:
    return {"workflows": workflows} if workflows is not None and url.startswith("comfyui:") else {}


def run(flags: Flags, file: Path | None) -> int:
    """The exit code: 0 done, 1 failed, 2 wrong usage."""
    import asyncio

    from agent.app import serve
    from agent.config.sources import load
    from shared.process.event_loop import event_loop_factory
    from shared.process.excerpt import printable
    from shared.process.logs import configure_logs
    from shared.process.settings import ConfigError
    from shared.protocol.errors import TrunklineError

    try:
        config = load(flags, file)
        configure_logs(config.log_level, config.log_format, text_time="%H:%M:%S")
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(serve(config))
    except (ConfigError, TrunklineError) as error:
        said = printable(str(error), keep="\n")
        typer.echo(f"error: {said}", err=True)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 1
    return 0


app = CommandApp(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(agent)


def main() -> None:
    """``python -m agent``."""
    app(prog_name="python -m agent")
