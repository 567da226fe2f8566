"""``python -m tests.support.fleet``: many whole agents in one process, each with a state and a model of its
own.

Theirs alone: identity, session, dialer, registry of engines, runner. Shared: the interpreter, the event loop
and the log, as starting a hundred interpreters would take minutes on a small machine. The model of agent
``a7`` is ``a7``; the engine must list it. With ``{name}`` in the engine's URL each agent has its own name in
place of it, and offers what is listed there. Prints ``listening agents`` when all have begun; ends when told
to stop.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from agent.app import Agent
from agent.config.sources import load
from agent.stopping import Stop, listen_for_signals
from shared.process.logs import configure_logs
from shared.process.startup import raise_file_limit


def engine_of(url: str, name: str, refresh_s: float) -> dict[str, object]:
    """The engine of the agent ``name``, as its settings say it."""
    if "{name}" in url:
        return {"url": url.replace("{name}", name), "refresh_s": refresh_s}
    return {"url": url, "models": (name,), "refresh_s": refresh_s}


async def _serve(arguments: argparse.Namespace) -> None:
    raise_file_limit()
    stops = [Stop() for _ in arguments.names]

    def ask() -> None:
        for stop in stops:
            stop.ask()

    listen_for_signals(ask)
    async with asyncio.TaskGroup() as tasks:
        for name, stop in zip(arguments.names, stops, strict=True):
            flags = {
                "gateway": arguments.gateway,
                "join": arguments.join,
                "state": arguments.state / name,
                "name": name,
                "engine": [engine_of(arguments.engine, name, arguments.refresh_s)],
                "slots": arguments.slots,
            }
            tasks.create_task(Agent(load(flags, None), stop).run())
        sys.stdout.write("listening agents\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="fleet", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--join", required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--refresh-s", type=float, default=5.0, help="how often engines are asked")
    arguments = parser.parse_args()
    configure_logs("info", "json")
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(arguments))
    else:
        uvloop.run(_serve(arguments))


if __name__ == "__main__":
    main()
