"""``tests/run chaos``: the product under a schedule of faults drawn from a seed; every answer is checked.

Exit codes: 0 nothing was wrong, lost, doubled, leaked, and every error was a documented one that could not be
avoided; 1 something was; 2 wrong usage. A failing run keeps its logs and names the requests.
"""

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

from gateway.domain.queues import QueueKind
from tests.chaos.jobs.batches import run_batches
from tests.chaos.jobs.brokers import BROKERS
from tests.chaos.jobs.lines import JobsPlan
from tests.chaos.jobs.queues import QueuesPlan, run_queues
from tests.chaos.lost import Loss, run_losses
from tests.chaos.many.plan import ManyPlan
from tests.chaos.many.run import as_json, run_many
from tests.chaos.peer.house import install
from tests.chaos.realtime import run_realtime
from tests.chaos.regions.game import GamePlan
from tests.chaos.regions.places import namespaces_work
from tests.chaos.regions.run import run_regions
from tests.chaos.report import Report
from tests.chaos.run import Plan, run
from tests.chaos.schedule import Kind
from tests.chaos.table import HEAD, measure

T = TypeVar("T")

PARTS = ("faults", "losses", "jobs", "queues", "realtime", "regions")
"""What it consists of: the schedule of faults, engines that are lost one after the other, batches whose
gateways are killed again and again, queues of which the same is done, a realtime session whose tunnel is cut
every two seconds, and a game day: a region of child gateways that is cut off, comes back, and is killed."""

_MANY_PER_S = 12.0
"""The engines of a run with several gateways have 16 slots."""


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests/run chaos", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="may be repeated; default: all")
    parser.add_argument("--regions", action="store_true", help="the game day alone: --part regions")
    parser.add_argument(
        "--loopback", action="store_true", help="of regions: a proxy in place of network namespaces"
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="of each run")
    parser.add_argument(
        "--budgets",
        choices=["both", "default", "short"],
        default="both",
        help="the gateway's budgets of time: its defaults, or a few seconds; both: one run with each",
    )
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second")
    parser.add_argument("--worker-every", type=float, default=2.5, metavar="S", help="faults of workers")
    parser.add_argument("--no-demo", action="store_true", help="without the demo model")
    parser.add_argument("--no-restarts", action="store_true", help="leave the gateway alone")
    parser.add_argument("--no-faults", action="store_true", help="the load alone: must be flawless")
    parser.add_argument(
        "--gateways", type=int, default=1, metavar="N", help="several on one PostgreSQL and Redis"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes of each gateway, on the same"
    )
    parser.add_argument("--lines", type=int, default=10_000, help="of jobs: of the batches together")
    parser.add_argument("--kills", type=int, default=10, help="of jobs and queues: spread over the run")
    parser.add_argument("--messages", type=int, default=10_000, help="of queues: of each source")
    parser.add_argument(
        "--source", action="append", choices=[*BROKERS], help="of queues; may be repeated; default: all"
    )
    parser.add_argument("--peer", choices=["ssh"], help="SSH tunnels behind nginx instead, to compare")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write all figures there")
    parser.add_argument("--keep", type=Path, default=None, metavar="DIR", help="keep logs there in any case")
    parser.add_argument("--faults-table", action="store_true", help="each fault alone: what a client sees")
    parser.add_argument("--times", type=int, default=3, help="of each fault in the table")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults of the table that hold this")
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    directory = arguments.keep or Path(tempfile.mkdtemp(prefix="trunkline-chaos-"))
    if arguments.peer is not None:
        install()
    if arguments.faults_table:
        return _table(arguments, directory)
    arguments.seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    chosen = [*(arguments.part or ()), *(["regions"] if arguments.regions else [])]
    parts = (
        ("faults",)
        if arguments.peer is not None
        else tuple(part for part in PARTS if part in (chosen or PARTS))
    )
    several = arguments.gateways > 1 or arguments.workers > 1
    failed = [_play(part, arguments, directory, several=several) for part in parts]
    if arguments.keep is None and not any(failed):
        shutil.rmtree(directory)
    return int(any(failed))


def _play(part: str, arguments: argparse.Namespace, directory: Path, *, several: bool) -> bool:
    """One part; whether something was wrong."""
    if part == "faults":
        return (_many_faults if several else _faults)(arguments, directory)
    if part == "losses":
        return not several and _told(_on_loop(run_losses(tuple(Loss), directory / "losses", _say)), directory)
    if part == "realtime":
        session = run_realtime(arguments.minutes * 60, directory / "realtime", _say)
        return _told(_on_loop(session).wrong(), directory)
    others = {"jobs": _jobs, "queues": _queues, "regions": _regions}
    return others[part](arguments, directory / part)


def _jobs(arguments: argparse.Namespace, directory: Path) -> bool:
    """Batches of many lines; whether something was wrong."""
    demo = not arguments.no_demo
    plan = JobsPlan(arguments.seed, arguments.lines, arguments.kills, arguments.gateways, demo=demo)
    return _told(_on_loop(run_batches(plan, directory, _say)), directory)


def _queues(arguments: argparse.Namespace, directory: Path) -> bool:
    """Messages of each source; whether something was wrong."""
    kinds = tuple(map(QueueKind, arguments.source or BROKERS))
    plan = QueuesPlan(arguments.seed, arguments.messages, arguments.kills, arguments.gateways, kinds)
    return _told(_on_loop(run_queues(plan, directory, _say)), directory)


def _regions(arguments: argparse.Namespace, directory: Path) -> bool:
    """A region that is lost and comes back; whether something was wrong."""
    plan = GamePlan(namespaces=not arguments.loopback and namespaces_work())
    return _told(_on_loop(run_regions(plan, directory, _say)).wrong, directory)


def _faults(arguments: argparse.Namespace, directory: Path) -> bool:
    """One gateway, with each of its budgets; whether something was wrong."""
    budgets = {"both": [True, False], "short": [True], "default": [False]}[arguments.budgets]
    if arguments.peer is not None:
        budgets = [True]  # they are the gateway's, and there is none
    wrong = [_run(arguments, directory / ("short" if short else "default"), short) for short in budgets]
    return any(wrong)


def _many_faults(arguments: argparse.Namespace, directory: Path) -> bool:
    """Several gateways, and faults of them, of their servers and of the paths between."""
    plan = ManyPlan(
        arguments.seed,
        arguments.gateways,
        arguments.minutes * 60,
        rate_per_s=min(arguments.rate, _MANY_PER_S),
        workers=arguments.workers,
    )
    findings = _on_loop(run_many(plan, directory / "faults", _say))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(findings, plan), indent=1) + "\n")
    return _told(findings.wrong, directory / "faults")


def _run(arguments: argparse.Namespace, directory: Path, short_budgets: bool) -> bool:
    """One run; whether something was wrong."""
    plan = Plan(
        seed=arguments.seed,
        seconds=arguments.minutes * 60,
        rate_per_s=arguments.rate,
        demo=not arguments.no_demo and arguments.peer is None,
        peer=arguments.peer is not None,
        restarts=not arguments.no_restarts,
        faults=not arguments.no_faults,
        worker_every_s=arguments.worker_every,
        short_budgets=short_budgets,
    )
    report = _on_loop(run(plan, directory, _say))
    sys.stdout.write(report.text() + "\n")
    if arguments.json is not None:
        report.write_json(
            arguments.json if short_budgets or arguments.budgets != "both" else _beside(arguments.json)
        )
    if report.failures:
        sys.stdout.write(_failed(report, directory))
    return bool(report.failures)


def _told(failures: list[str], directory: Path) -> bool:
    """Whether something was wrong."""
    if failures:
        said = ["", "FAILED:", *(f"  {why}" for why in failures), f"logs of all processes: {directory}", ""]
        sys.stdout.write("\n".join(said))
    return bool(failures)


def _beside(path: Path) -> Path:
    """Where the figures of the run with default budgets go."""
    return path.with_name(f"{path.stem}-default{path.suffix}")


def _on_loop(work: Coroutine[None, None, T]) -> T:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _table(arguments: argparse.Namespace, directory: Path) -> int:
    kinds = [kind for kind in Kind if arguments.only in kind]
    rows = _on_loop(measure(kinds, arguments.times, arguments.seed or 1, directory, _say))
    sys.stdout.write("\n".join([HEAD, *map(str, rows)]) + "\n")
    return 0


def _failed(report: Report, directory: Path) -> str:
    path = directory / "offending.txt"
    path.write_text("\n".join(report.tally.offending) + "\n")
    lines = ["", *report.tally.offending[:20]]
    if len(report.tally.offending) > 20:
        lines.append(f"… and more in {path}")
    lines += ["", f"FAILED with seed {report.schedule.seed}:", *(f"  {why}" for why in report.failures)]
    return "\n".join([*lines, f"logs of all processes, offending requests: {directory}", ""])


if __name__ == "__main__":
    sys.exit(main())
