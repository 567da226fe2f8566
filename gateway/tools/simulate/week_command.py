"""``trunkline simulate-week``: what scaling ahead is worth. Exit codes: 0 done, 2 wrong usage."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli_support.console import command_with, note, number_option, print_json, print_table
from gateway.scheduling.scaling.data import ClassFacts, ScalingRule
from gateway.tools.simulate.devices import DEFAULT_MODEL, MODELS, device_named, model_named, pace_of
from gateway.tools.simulate.inputs import BadSpec
from gateway.tools.simulate.traces import TraceFile

if TYPE_CHECKING:
    from gateway.tools.simulate.week import WeekFigures

POLICIES = ("fixed", "reactive", "predictive", "gated")
SHAPES = ("office", "jobs", "erratic")
_COLUMNS = ["WEEK", "POLICY", "SLO KEPT", "GPU-HOURS", "USED", "AT MOST", "FORECAST OFF", "ACTED"]

EPILOG = (
    "fixed: as many as the busiest hour of the four weeks before needs. reactive: without a forecast. "
    "predictive: with one that always acts. gated: with one that acts only while it wins its back-test."
)


def register(parent: typer.Typer) -> None:
    """Add the command to a command line."""
    parent.command("simulate-week", epilog=EPILOG)(command_with(WeekOptions, week_command))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekOptions:
    """The options of the command."""

    trace: Annotated[
        Path,
        typer.Option(help="Lengths and bursts are of these.", metavar="FILE", show_default=False),
    ]
    shape: Annotated[
        str, typer.Option(help=f"How the days go: {', '.join(SHAPES)}; several, joined by commas.")
    ] = "office"
    policy: Annotated[str, typer.Option(help="One or several, joined by commas.", metavar="P[,P…]")] = (
        ",".join(POLICIES)
    )
    device: Annotated[str, typer.Option(help="The class of all replicas.", metavar="CLASS")] = "l4"
    model: Annotated[str, typer.Option(help=f"What they serve: {', '.join(MODELS)}.", metavar="NAME")] = (
        DEFAULT_MODEL
    )
    replicas: Annotated[float, number_option("So many are kept busy when most comes.")] = 6.0
    ready: Annotated[float, number_option("A replica takes so long until it is ready, in seconds.")] = 180.0
    slo: Annotated[float, number_option("The first token shall be there after so many seconds.")] = 5.0
    noise: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="How far, for hours, days are off their shape.")
    ] = 0.15
    seeds: Annotated[int, typer.Option(min=1, max=100, help="So many weeks are drawn by chance.")] = 3
    seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 1
    as_json: Annotated[bool, typer.Option("--json", help="All figures, for programs.")] = False


def week_command(options: WeekOptions) -> None:
    """Run a week of requests with replicas that come and go, by each way to decide how many there are.

    Needs numpy (trunkline[forecast]). The rates of the week are made up, lengths and bursts are the trace's.

    Example: trunkline simulate-week --trace azure_llm_code_2023.csv --shape office,jobs,erratic
    """
    try:
        found = run_weeks(options)
    except BadSpec as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from None
    if options.as_json:
        print_json({"weeks": found, "seeds": options.seeds, "ready_s": options.ready, "slo_s": options.slo})
        return
    print_table(_COLUMNS, [_row(each) for each in summed(found)], "nothing was simulated")


def run_weeks(options: WeekOptions) -> list[dict[str, Any]]:
    """One member for each shape, seed and policy. Raises BadSpec."""
    try:
        from gateway.tools.simulate.week import WeekRun, WeekSettings
        from gateway.tools.simulate.week_load import traffic_of, work_of
    except ImportError as error:
        raise BadSpec("--trace", f"pip install 'trunkline[forecast]' ({error})") from error
    policies, shapes = _named("--policy", options.policy, POLICIES), _named("--shape", options.shape, SHAPES)
    pace = pace_of(device_named(options.device), model_named(options.model))
    jobs = list(TraceFile(options.trace).jobs())
    works = [work_of(job, pace, pace.slots) for job in jobs]
    reads = sorted(read_s for _, read_s in works)
    high_s = reads[int(0.99 * len(reads))]
    if high_s >= options.slo:
        raise BadSpec(
            "--slo", f"one prompt of a hundred takes {high_s:.1f} s to read there, which is too long"
        )
    request_s = sum(work_s for work_s, _ in works) / len(works)
    usual_s = sum(reads) / len(reads)
    facts = ClassFacts(
        options.device, pace.slots, request_s, high_s, lead_s=options.ready, usual_first_s=usual_s
    )
    settings = WeekSettings(facts, ScalingRule(first_token_s=options.slo))
    found = []
    for shape in shapes:
        for seed in range(options.seed, options.seed + options.seeds):
            about = {"noise": options.noise, "seed": seed}
            traffic = traffic_of(jobs, shape, pace, pace.slots, options.replicas, **about)  # type: ignore[arg-type]
            for policy in policies:
                figures = WeekRun(traffic, settings, policy, seed).run()
                found.append({"shape": shape, "seed": seed, **figures.as_json()})
                _tell(shape, seed, figures)
    return found


def summed(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean of all seeds, and the least and the most that was kept, of each shape and policy."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in found:
        groups.setdefault((each["shape"], each["policy"]), []).append(each)
    rows = []
    for (shape, policy), runs in groups.items():
        errors = [each["forecast_error"] for each in runs if each["forecast_error"] is not None]
        means = {
            name: sum(each[name] for each in runs) / len(runs)
            for name in ("slo_kept", "gpu_hours", "used", "most_replicas", "forecast_acted_days")
        }
        kept = [each["slo_kept"] for each in runs]
        rows.append(
            {"shape": shape, "policy": policy, **means, "least_kept": min(kept), "most_kept": max(kept)}
            | {"forecast_error": sum(errors) / len(errors) if errors else None}
        )
    return rows


def _row(each: dict[str, Any]) -> list[str]:
    error, looks_ahead = each["forecast_error"], each["policy"] in ("predictive", "gated")
    return [
        each["shape"],
        each["policy"],
        f"{each['slo_kept']:.2%} ({each['least_kept']:.2%} to {each['most_kept']:.2%})",
        f"{each['gpu_hours']:.0f}",
        f"{each['used']:.0%}",
        f"{each['most_replicas']:.0f}",
        "" if error is None else f"{error:.0%}",
        f"{each['forecast_acted_days']:.1f} days" if looks_ahead else "",
    ]


def _named(option: str, text: str, known: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise BadSpec(option, f"{name!r} is none of {', '.join(known)}")
    return names


def _tell(shape: str, seed: int, figures: "WeekFigures") -> None:
    kept = figures.kept / max(1, figures.requests)
    note(
        f"{shape}, seed {seed}, {figures.policy}: {figures.requests:,} requests, {kept:.2%} in time, "
        f"{figures.replica_hours:.0f} GPU-hours"
    )
