"""``python -m tests.clients [CLIENT...]``: installs clients, runs their programs, prints what they could do.

Exits with 1 if a check failed. Without ``--url`` a gateway is started, with an engine that has chat
completions and embeddings only, and the built-in engine with the demo model.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.clients.install import CLIENTS, Client
from tests.clients.running import Result, Served, run_client, table
from tests.support import chat_engine, tiny_model
from tests.support.processes import House, command

DEMO, EMBEDDER = "trunkline-demo", "tiny-embedder"
CHAT_ONLY, BUILT_IN = "chat-only", "built-in"
ALIASES = ("claude-haiku-4-5-20251001", "claude-sonnet-4-5")
"""Names that clients know which take no others: aliases for the models."""


@contextmanager
def engines(directory: Path, names: Sequence[str]) -> Iterator[Sequence[Served]]:
    """A gateway with an engine that has chat completions and embeddings only, with the built-in one, or
    both."""
    with House(directory) as house:
        gateway = house.gateway()
        key = gateway.key("clients")
        served = []
        if CHAT_ONLY in names:
            child = house.children.start(CHAT_ONLY, "tests.support.chat_engine")
            house.agent(gateway, house.listening(child), name=CHAT_ONLY)
            model = chat_engine.MODEL
            title, alias = "an engine with chat only", ALIASES[0]
            served.append(Served(title, gateway.url, key, model, model, alias, echoes=True))
        if BUILT_IN in names:
            tiny_model.make_encoder(directory / EMBEDDER)
            house.agent(gateway, "torch:demo", "--torch", str(directory / EMBEDDER), name=BUILT_IN)
            served.append(Served("the built-in engine", gateway.url, key, DEMO, EMBEDDER, ALIASES[1]))
        for each in served:
            setting = command("alias", "set", each.alias, each.model, "--state", str(gateway.state))
            subprocess.run(setting, check=True, stdout=subprocess.DEVNULL)
            for model in {each.model, each.embedder}:
                house.wait_for_model(gateway, key, model, 120)
        yield served


async def run_all(clients: Sequence[Client], served: Served) -> list[Result]:
    """One after the other: they compute for some seconds each."""
    return [await run_client(client, served) for client in clients]


def report(served: Served, results: Sequence[Result]) -> str:
    lines = [table(served.title, results), ""]
    lines += [f"{each.client.title}: {failure}" for each in results for failure in each.failures]
    for each in results:
        unasked = [(check, why) for check, (ok, why) in each.checks.items() if ok is None]
        lines += [f"{each.client.title}: {check} was not asked: {why}" for check, why in unasked]
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    names = {Path(client.program).stem: client for client in CLIENTS}
    parser.add_argument("client", nargs="*", help=f"only these: {', '.join(names)}")
    parser.add_argument("--engine", choices=(CHAT_ONLY, BUILT_IN), help="only this one")
    parser.add_argument("--url", help="a gateway that runs, with --key and --model")
    parser.add_argument("--key", default="")
    parser.add_argument("--model", default="")
    parser.add_argument("--embedder", default="", help="the model for embeddings; default: --model")
    parser.add_argument("--alias", default="", help="an alias of the model that is a name of Anthropic's")
    arguments = parser.parse_args()
    if unknown := set(arguments.client) - set(names):
        parser.error(f"no client named {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    clients = [names[name] for name in arguments.client] or list(CLIENTS)
    if arguments.url:
        model = arguments.model
        url, embedder = arguments.url.rstrip("/"), arguments.embedder or model
        served = Served(model, url, arguments.key, model, embedder, arguments.alias)
        return _print([served], clients)
    wanted = [arguments.engine] if arguments.engine else [CHAT_ONLY, BUILT_IN]
    with tempfile.TemporaryDirectory() as directory, engines(Path(directory), wanted) as there:
        return _print(there, clients)


def _print(there: Sequence[Served], clients: Sequence[Client]) -> int:
    failed = False
    for served in there:
        results = asyncio.run(run_all(clients, served))
        failed |= any(result.failures for result in results)
        sys.stdout.write(report(served, results) + "\n")
        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
