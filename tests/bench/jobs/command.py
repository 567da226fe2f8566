"""``tests/run bench jobs``: its parts, each of which can be run alone."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from tests.bench.jobs import beside, completion, large_files, queued, stores
from tests.bench.peers import tools
from tests.bench.peers.machine import facts
from tests.bench.written import write_block
from tests.support.processes import House


class PartFigures(Protocol):
    """What a part measured; its text is for people."""

    def to_json(self) -> str: ...


def _stores(directory: Path, arguments: argparse.Namespace) -> PartFigures | str:
    if (problem := tools.missing()) is not None:
        return problem
    return stores.run(directory, stores.StoreSizes(jobs=arguments.jobs))


def _queued(directory: Path, arguments: argparse.Namespace) -> PartFigures:
    return queued.run(directory, queued.QueuedSizes(many=arguments.queued))


def _completion(directory: Path, arguments: argparse.Namespace) -> PartFigures:
    with House(directory) as house:
        return completion.run(house, completion.CompletionSizes())


def _file(directory: Path, arguments: argparse.Namespace) -> PartFigures:
    with House(directory) as house:
        return large_files.run(house, arguments.file_mebibyte)


def _beside(directory: Path, arguments: argparse.Namespace) -> PartFigures:
    sizes = beside.BesideSizes(rounds=arguments.slices, reading_ms=arguments.reading_ms or beside.READING_MS)
    if arguments.seconds is not None:
        sizes = replace(sizes, seconds=arguments.seconds)
    with House(directory) as house:
        return beside.run(house, sizes)


PARTS: Mapping[str, Callable[[Path, argparse.Namespace], PartFigures | str]] = {
    "stores": _stores,
    "queued": _queued,
    "completion": _completion,
    "file": _file,
    "beside": _beside,
}
"""Each gives its figures, or why it cannot be run here."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of this load."""
    parser.add_argument("--part", action="append", choices=[*PARTS], help="of jobs; may be repeated")
    parser.add_argument("--jobs", type=int, default=stores.StoreSizes().jobs, help="of jobs: for each store")
    parser.add_argument(
        "--queued", type=int, default=queued.QueuedSizes().many, help="of jobs: that wait at once"
    )
    parser.add_argument(
        "--slices", type=int, default=beside.BesideSizes().rounds, help="of jobs: of each kind, with beside"
    )
    parser.add_argument(
        "--reading-ms",
        action="append",
        type=int,
        metavar="MS",
        help="of jobs: what the engine takes before a first token, with beside; may be repeated",
    )
    parser.add_argument("--file-mebibyte", type=int, default=512, help="of jobs: of the large file")


def load(arguments: argparse.Namespace) -> object:
    """Run the parts; the text of all of them. Each is written where wanted, into a document at its own
    place."""
    said, found = [], {}
    for name in arguments.part or PARTS:
        with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as directory:
            try:
                figures = PARTS[name](Path(directory), arguments)
            except pytest.skip.Exception as skipped:
                figures = str(skipped)
        if isinstance(figures, str):
            said.append(f"{name}: not run: {figures}")
            continue
        said.append(f"{name}:\n{figures}")
        found[name] = json.loads(figures.to_json())
        if arguments.write is not None:
            when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            block = f"{when}, {facts()}:\n\n```\n{figures}\n```"
            write_block(arguments.write, f"jobs --part {name}", block)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    return "\n".join(said)
