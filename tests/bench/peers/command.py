"""The load ``peers`` on the bench's command line."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tests.bench.peers import document, report, tools
from tests.bench.peers.known import PACKAGES, PEERS
from tests.bench.peers.run import Results, run
from tests.bench.peers.workloads import Scale, workloads
from tests.support import programs


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those that only ``peers`` has."""
    group = parser.add_argument_group("peers")
    kinds = [each.name for each in workloads(Scale())]
    group.add_argument("--peers", type=_some_of(each.name for each in PEERS), default=(), metavar="NAME,…")
    group.add_argument("--workloads", type=_some_of(kinds), default=(), metavar="NAME,…")
    group.add_argument("--rounds", type=int, default=3)
    group.add_argument(
        "--write", type=Path, metavar="FILE", help="put figures into this document (also memory, scale)"
    )


def _some_of(names: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    known = tuple(names)

    def parse(text: str) -> tuple[str, ...]:
        wanted = tuple(text.split(","))
        unknown = [each for each in wanted if each not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(known)}")
        return wanted

    return parse


def load(arguments: argparse.Namespace) -> str:
    """Compare, write what is to be written, and tell. Says why if it cannot be done here."""
    problem = tools.missing()
    if problem is not None:
        return f"not run: {problem}"
    programs.install(PACKAGES)  # where it cannot, peers that lack something are skipped and say so
    scale = replace(Scale(), streams=arguments.streams)
    if arguments.seconds is not None:
        scale = replace(scale, seconds=arguments.seconds)
    apart = arguments.gateway_apart
    results = run(arguments.peers, scale, arguments.rounds, arguments.workloads, gateway_apart=apart)
    keep(results, arguments.json, arguments.write)
    return report.told(results)


def keep(results: Results, json_file: Path | None, written: Path | None) -> None:
    """Write them where wanted."""
    if json_file is not None:
        json_file.write_text(report.as_json(results), "utf-8")
    if written is not None:
        document.write(results, written)
