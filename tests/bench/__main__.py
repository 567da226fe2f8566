"""``python -m tests.bench [LOAD...]``: the loads in full, with figures."""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from tests.bench import (
    access,
    calls,
    choice,
    concurrent,
    crowd,
    dashboard,
    decision,
    generation,
    growth,
    half_load,
    idle,
    limits,
    live,
    memory,
    own_models,
    policies,
    progress,
    restart,
    revocation,
    scale,
    shared,
    stalled,
    traces,
    turns,
    upload,
    validate,
)
from tests.bench.jobs import command as jobs
from tests.bench.peers import command as peers
from tests.bench.peers import tools
from tests.bench.peers.machine import facts
from tests.bench.site import LoadSite, build
from tests.bench.written import write_block
from tests.support.browser import missing_browser
from tests.support.processes import House

Load = Callable[[LoadSite, argparse.Namespace], Coroutine[None, None, object]]
_SECONDS = 15.0
_GROWTH_S = 120.0
_LIVE_S = 60.0
_ACCESS_S = 3.0
_CHOICES = 300
_REVOKED = 20
_TRACE = Path("..") / "shared" / "data" / "azure_llm_code_2023.csv"
_SPARE_FILES = 2048


@contextmanager
def _directory() -> Iterator[Path]:
    """An empty one, which is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as directory:
        yield Path(directory)


@contextmanager
def _house() -> Iterator[House]:
    """Processes of one load, which are stopped afterwards."""
    with _directory() as directory, House(directory) as house:
        yield house


async def _streams(site: LoadSite, arguments: argparse.Namespace) -> object:
    seconds = arguments.seconds or _SECONDS
    return await concurrent.run(site, arguments.streams, arguments.tokens_per_s, seconds)


async def _stalled(site: LoadSite, arguments: argparse.Namespace) -> object:
    return await stalled.run(site, arguments.stalled, arguments.readers, arguments.seconds or _SECONDS)


async def _upload(site: LoadSite, arguments: argparse.Namespace) -> object:
    return await upload.run(site, arguments.megabytes * 10**6, 4, 10.0)


async def _download(site: LoadSite, arguments: argparse.Namespace) -> object:
    return await upload.run(site, arguments.megabytes * 10**6, 4, 10.0, down=True)


_ON_A_SITE: dict[str, tuple[Load, float | None, Mapping[str, str]]] = {
    "streams": (_streams, None, {}),
    "stalled": (_stalled, None, stalled.ENVIRONMENT),
    "upload": (_upload, upload.RATE_MBIT, {}),
    "download": (_download, upload.RATE_MBIT, {}),
}


def _decision(arguments: argparse.Namespace) -> object:
    return decision.run()


def _choice(arguments: argparse.Namespace) -> object:
    return "\n".join(map(str, choice.run(_CHOICES)))


def _limits(arguments: argparse.Namespace) -> object:
    figures = asyncio.run(limits.run(15, 150))
    return "\n".join(f"{name:36s} {cpu_us:7.1f} us" for name, cpu_us in figures.items())


def _access(arguments: argparse.Namespace) -> object:
    problem = tools.missing()
    if problem is not None:
        return f"not run: {problem}"
    with _house() as house:
        figures = access.run(house, arguments.rounds, arguments.seconds or _ACCESS_S)
    return _in_json(figures, arguments)


def _traces(arguments: argparse.Namespace) -> object:
    problem = tools.missing()
    if problem is not None:
        return f"not run: {problem}"
    with _directory() as directory:
        figures = traces.run(directory, arguments.rounds, arguments.seconds or _ACCESS_S)
    return _in_json(figures, arguments)


def _calls(arguments: argparse.Namespace) -> object:
    with _directory() as directory:
        return _in_json(calls.run(directory), arguments)


def _revocation(arguments: argparse.Namespace) -> object:
    with _house() as house:
        figures = revocation.run(house, _REVOKED, _REVOKED)
    return _in_json(figures, arguments)


def _turns(arguments: argparse.Namespace) -> object:
    with _directory() as directory:
        seconds = arguments.seconds or turns.QUIET_S
        figures = turns.run(directory / "state", arguments.agents, arguments.keys, seconds)
    return _in_json(figures, arguments)


def _restart(arguments: argparse.Namespace) -> object:
    with _house() as house:
        compiled = restart.byte_code_in(house.directory / "byte-code")
        figures = restart.run(restart.build(house, arguments.agents, environment=compiled), arguments.kills)
    if arguments.json is not None:
        restart.write(figures, arguments.json)
    return figures


_Sizes = TypeVar("_Sizes", scale.Sizes, half_load.HalfLoadSizes, dashboard.DashboardSizes)


def _lasting(sizes: _Sizes, arguments: argparse.Namespace) -> _Sizes:
    """For as many seconds as are asked for, if any are."""
    return sizes if arguments.seconds is None else replace(sizes, seconds=arguments.seconds)


class _Figures(Protocol):
    def to_json(self) -> str: ...


def _in_json(figures: _Figures, arguments: argparse.Namespace) -> object:
    """Written where wanted."""
    if arguments.json is not None:
        arguments.json.write_text(figures.to_json())
    return figures


def _kept(load: str, figures: _Figures, arguments: argparse.Namespace) -> object:
    """Written where wanted, into a document too."""
    _in_json(figures, arguments)
    if arguments.write is not None:
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        write_block(arguments.write, load, f"{when}, {facts()}:\n\n```\n{figures}\n```")
    return figures


def _memory(arguments: argparse.Namespace) -> object:
    sizes = (1000, 5000, arguments.open_streams)
    problem = tools.missing() or memory.missing(*sizes)
    if problem is not None:
        return f"not run: {problem}"
    with _house() as house:
        figures = memory.run(house, *sizes)
    return _kept("memory", figures, arguments)


def _scale(arguments: argparse.Namespace) -> object:
    sizes = _lasting(scale.Sizes(), arguments)
    problem = tools.missing() or scale.missing(sizes)
    if problem is not None:
        return f"not run: {problem}"
    figures = scale.run(sizes)
    return _kept("scale", figures, arguments)


def _serve(arguments: argparse.Namespace) -> object:
    seconds = arguments.seconds or own_models.SECONDS
    figures = own_models.run(arguments.connections, seconds, arguments.rounds)
    return _kept("serve", figures, arguments)


def _generation(arguments: argparse.Namespace) -> object:
    figures = generation.run(arguments.batches, arguments.tokens, arguments.rounds)
    return _kept("generation", figures, arguments)


def _progress(arguments: argparse.Namespace) -> object:
    with _house() as house:
        figures = progress.run(house, seconds=arguments.seconds or progress.SECONDS)
    return _kept("progress", figures, arguments)


def _shared(arguments: argparse.Namespace) -> object:
    if (problem := tools.missing()) is not None:
        return f"not run: {problem}"
    sizes = shared.SharedSizes()
    if arguments.seconds is not None:
        sizes = replace(sizes, tight_s=arguments.seconds)
    with _directory() as directory:
        try:
            figures = shared.run(directory, sizes)
        except pytest.skip.Exception as skipped:
            return f"not run: {skipped}"
    return _kept("shared", figures, arguments)


def _idle(arguments: argparse.Namespace) -> object:
    agents, processes = arguments.idle_agents, arguments.processes
    problem = tools.missing() or idle.missing(agents, processes)
    if problem is not None:
        return f"not run: {problem}"
    with _house() as house:
        try:
            figures = idle.run(house, agents, processes, arguments.seconds or idle.SECONDS)
        except pytest.skip.Exception as skipped:
            return f"not run: {skipped}"
    return _kept("idle", figures, arguments)


def _half_load(arguments: argparse.Namespace) -> object:
    problem = tools.missing() or crowd.may_open(2 * _SPARE_FILES)
    if problem is not None:
        return f"not run: {problem}"
    with _house() as house:
        sizes = _lasting(half_load.HalfLoadSizes(), arguments)
        figures = half_load.run(house, sizes, gateway_apart=arguments.gateway_apart)
    return _kept("half-load", figures, arguments)


def _dashboard(arguments: argparse.Namespace) -> object:
    problem = tools.missing() or missing_browser() or crowd.may_open(_SPARE_FILES)
    if problem is not None:
        return f"not run: {problem}"
    with _house() as house:
        figures = dashboard.run(house, _lasting(dashboard.DashboardSizes(), arguments))
    return _kept("dashboard", figures, arguments)


def _growth(arguments: argparse.Namespace) -> object:
    problem = tools.missing() or crowd.may_open(_SPARE_FILES)
    if problem is not None:
        return f"not run: {problem}"
    with _house() as house:
        figures = growth.run(house, arguments.seconds or _GROWTH_S)
    return _kept("growth", figures, arguments)


def _live(arguments: argparse.Namespace) -> object:
    trace, seconds = arguments.trace, arguments.seconds or _LIVE_S
    if not trace.is_file():
        return f"not run: {trace} is not there; --trace names another"
    replayed = live.jobs_of(trace, arguments.from_s, seconds, arguments.rate)
    if not replayed:
        return f"not run: {trace} has no request in {seconds * arguments.rate:g} s from {arguments.from_s:g}"
    return _in_json(live.run(replayed, arguments.rate, arguments.policies.split(",")), arguments)


_ALONE: dict[str, Callable[[argparse.Namespace], object]] = {
    "decision": _decision,
    "choice": _choice,
    "calls": _calls,
    "limits": _limits,
    "access": _access,
    "traces": _traces,
    "revocation": _revocation,
    "restart": _restart,
    "memory": _memory,
    "scale": _scale,
    "shared": _shared,
    "serve": _serve,
    "generation": _generation,
    "progress": _progress,
    "idle": _idle,
    "turns": _turns,
    "growth": _growth,
    "dashboard": _dashboard,
    "half-load": _half_load,
    "live": _live,
    "jobs": jobs.load,
    "peers": peers.load,
    "policies": policies.load,
    "validate": validate.load,
}
"""Those that start what they need themselves."""
_NAMES = (*_ON_A_SITE, *_ALONE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests/run bench", description=__doc__)
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"of {', '.join(_NAMES)}; default all")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens-per-s", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, help="how long is measured; each load has its own default")
    parser.add_argument("--stalled", type=int, default=200)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--agents", type=int, default=100, help="of restart and turns: that come back")
    parser.add_argument("--keys", type=int, default=turns.KEYS, help="of turns: that are made at once")
    parser.add_argument("--idle-agents", type=int, default=idle.AGENTS, help="of idle")
    parser.add_argument("--processes", type=int, default=idle.PROCESSES, help="of idle: of the gateway")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures there, where they have JSON"
    )
    parser.add_argument("--open-streams", type=int, default=10_000, help="of memory")
    parser.add_argument("--trace", type=Path, default=_TRACE, help="of live (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=15.0, help="of live: so many times the trace's pace")
    parser.add_argument("--from-s", type=float, default=0.0, help="of live: where in the trace it begins")
    parser.add_argument("--policies", default=",".join(live.POLICIES), help="of live")
    jobs.add_options(parser)
    parser.add_argument(
        "--gateway-apart", action="store_true", help="of half-load and peers: its agent is on another core"
    )
    parser.add_argument("--connections", type=int, default=own_models.CONNECTIONS, help="of serve")
    parser.add_argument(
        "--batches", type=int, nargs="+", default=generation.BATCHES, help="of generation: requests at once"
    )
    parser.add_argument("--tokens", type=int, default=generation.TOKENS, help="of generation: of each answer")
    peers.add_options(parser)
    policies.add_options(parser)
    return parser


def _on_a_site(name: str, arguments: argparse.Namespace) -> object:
    load, rate_mbit, environment = _ON_A_SITE[name]
    with _house() as house:
        site = build(house, slots=1024, rate_mbit=rate_mbit, delay_ms=10.0, environment=environment)
        return asyncio.run(load(site, arguments))


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    unknown = set(arguments.loads) - set(_NAMES)
    if unknown:
        parser.error(f"no such load: {', '.join(sorted(unknown))}")
    for name in arguments.loads or _NAMES:
        figures = _ALONE[name](arguments) if name in _ALONE else _on_a_site(name, arguments)
        sys.stdout.write(f"--- {name}\n{figures}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
