"""``python -m tests.bench [LOAD...]``: the loads in full, with figures."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path

from tests.bench import concurrent, decision, restart, stalled, upload
from tests.bench.site import LoadSite, build
from tests.support.processes import House

Load = Callable[[LoadSite, argparse.Namespace], Coroutine[None, None, object]]


async def _streams(site: LoadSite, arguments: argparse.Namespace) -> object:
    return await concurrent.run(site, arguments.streams, arguments.tokens_per_s, arguments.seconds)


async def _stalled(site: LoadSite, arguments: argparse.Namespace) -> object:
    return await stalled.run(site, arguments.stalled, arguments.readers, arguments.seconds)


async def _upload(site: LoadSite, arguments: argparse.Namespace) -> object:
    return await upload.run(site, arguments.megabytes * 10**6, 4, 10.0)


async def _download(site: LoadSite, arguments: argparse.Namespace) -> object:
    return await upload.run(site, arguments.megabytes * 10**6, 4, 10.0, down=True)


_LOADS: dict[str, tuple[Load, float | None]] = {
    "streams": (_streams, None),
    "stalled": (_stalled, None),
    "upload": (_upload, upload.RATE_MBIT),
    "download": (_download, upload.RATE_MBIT),
}
_NAMES = (*_LOADS, "decision", "restart")


def _restart(arguments: argparse.Namespace) -> object:
    with (
        tempfile.TemporaryDirectory(prefix="trunkline-bench-") as directory,
        House(Path(directory)) as house,
    ):
        compiled = restart.byte_code_in(Path(directory) / "byte-code")
        figures = restart.run(restart.build(house, arguments.agents, environment=compiled), arguments.kills)
    if arguments.json is not None:
        restart.write(figures, arguments.json)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests/run bench", description=__doc__)
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"of {', '.join(_NAMES)}; default all")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens-per-s", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--stalled", type=int, default=200)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--agents", type=int, default=100, help="that come back after a restart")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="write restart's figures there"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.loads) - set(_NAMES)
    if unknown:
        parser.error(f"no such load: {', '.join(sorted(unknown))}")
    for name in arguments.loads or _NAMES:
        if name in ("decision", "restart"):
            figures = decision.run() if name == "decision" else _restart(arguments)
            sys.stdout.write(f"--- {name}\n{figures}\n")
            continue
        load, rate_mbit = _LOADS[name]
        with (
            tempfile.TemporaryDirectory(prefix="trunkline-bench-") as directory,
            House(Path(directory)) as house,
        ):
            site = build(house, slots=1024, rate_mbit=rate_mbit, delay_ms=10.0)
            figures = asyncio.run(load(site, arguments))
        sys.stdout.write(f"--- {name}\n{figures}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
