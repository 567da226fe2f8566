"""The command itself. Exit codes: 0 done, 1 no fleet was large enough or a chart was not written, 2 wrong
usage."""

import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli_support.console import command_with, fail, note, number_option, print_json, print_table
from gateway.tools.simulate.chart import Heading, check_plot, write_plot
from gateway.tools.simulate.devices import DEFAULT_MODEL, MODELS, model_named, own_device
from gateway.tools.simulate.engine import NEVER
from gateway.tools.simulate.fleet import DeploymentBuild, device_count, fleet_of, fleet_text
from gateway.tools.simulate.inputs import BadSpec, Traffic
from gateway.tools.simulate.mix import MAX_REQUESTS, READY, THERE_ARE, Mix
from gateway.tools.simulate.policies import PolicyChoice, choices, policy_names
from gateway.tools.simulate.report import (
    COLUMNS,
    GATEWAY_COLUMNS,
    ReportedTraffic,
    answer_columns,
    answer_rows,
    rows_of,
    values_of,
)
from gateway.tools.simulate.simulation import (
    FleetAnswer,
    Goal,
    SimulationPlan,
    Trial,
    gateway_counts,
    goals_of,
    simulate,
    smallest,
)
from gateway.tools.simulate.tally import GOOD_TPOT_S, GOOD_TTFT_S, Slo
from gateway.tools.simulate.traces import TraceFile
from gateway.tools.simulate.world import REPAIR_S, Rules
from shared.protocol.limits import OTHERS_EVERY_S

EPILOG = f"Mixes by name: {', '.join(READY)}. Policies: {', '.join(policy_names())}; all for every one."


def register(parent: typer.Typer) -> None:
    """Add ``trunkline simulate``."""
    parent.command("simulate", epilog=EPILOG)(command_with(SimulateOptions, simulate_command))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """The options of the command."""

    fleet: Annotated[
        str,
        typer.Option(
            help="As 4*h100,4*l4@40ms: with a round trip where it is long.",
            metavar="COUNT*CLASS,…",
            show_default=False,
        ),
    ]
    trace: Annotated[
        Path | None,
        typer.Option(help="Requests to replay; the format is seen from its content.", metavar="FILE"),
    ] = None
    mix: Annotated[
        str | None, typer.Option(help=f"Made-up requests instead: {THERE_ARE}.", metavar="SPEC")
    ] = None
    policy: Annotated[str, typer.Option(help="One or several, joined by commas.", metavar="P[,P…]")] = (
        "cost,least-outstanding"
    )
    seed: Annotated[int, typer.Option(help="Of all that is drawn by chance.")] = 0
    rate: Annotated[
        float, number_option("Requests come so many times as fast as in the traffic.", metavar="X")
    ] = 1.0
    requests: Annotated[
        int | None, typer.Option(min=1, max=MAX_REQUESTS, help="Only the first so many.", metavar="N")
    ] = None
    duration: Annotated[float | None, number_option("Only what comes within so many seconds.")] = None
    model: Annotated[
        str, typer.Option(help=f"What all devices serve: {', '.join(MODELS)}.", metavar="NAME")
    ] = DEFAULT_MODEL
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="A class of your own, as measured: mine:weights_s=0.02,token_s=0.0002,kv_tokens=40000.",
            metavar="NAME:…",
        ),
    ] = None
    gateways: Annotated[
        str,
        typer.Option(
            help="How many gateways there are; several numbers are compared, as 1,4,16.", metavar="N[,N…]"
        ),
    ] = "1"
    rtt: Annotated[
        float | None,
        number_option("Round trip of devices of which the fleet says none.", metavar="MS"),
    ] = None
    others: Annotated[
        float,
        number_option(
            "Agents tell each gateway what they run for others, at most so often; 0: never.",
            metavar="MS",
            least=0.0,
        ),
    ] = 1000 * OTHERS_EVERY_S
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Requests at once on a device. Default: by its memory.", metavar="N"
        ),
    ] = None
    cold: Annotated[bool, typer.Option("--cold", help="No device has loaded the model at first.")] = False
    spread: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="True speeds differ from the figures by, say, 0.2.")
    ] = 0.0
    slo_ttft: Annotated[float, number_option("A good request has its first token within so long.")] = (
        GOOD_TTFT_S
    )
    slo_tpot: Annotated[float, number_option("And takes no longer for each further one, on average.")] = (
        GOOD_TPOT_S
    )
    max_wait: Annotated[float | None, number_option("Refuse what waited so long in the gateway.")] = None
    mtbf: Annotated[float | None, number_option("Devices fail: mean time between two failures.")] = None
    repair: Annotated[
        float, number_option("How long one that failed is gone, before it loads its model.")
    ] = REPAIR_S
    what_if: Annotated[
        str | None,
        typer.Option(help="The smallest fleet of this composition with, say, ttft_p99<1.", metavar="GOALS"),
    ] = None
    plot: Annotated[
        Path | None, typer.Option(help="Draw the figures; .svg, or .png with Pillow.", metavar="FILE")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="All figures, for programs.")] = False


def simulate_command(options: SimulateOptions) -> None:
    """Run scheduling policies on simulated GPUs, and tell how each fared.

    The policies are the gateway's own; traffic comes from a trace or a description.

    Example: trunkline simulate --trace asked.jsonl --fleet '4*h100,4*l4' --policy cost,round-robin

    Example: trunkline simulate --mix chat --fleet '8*l4' --policy cost --gateways 1,4,16

    Example: trunkline simulate --mix chat --duration 60 --fleet '1*l4' --policy cost --what-if 'ttft_p99<1'
    """
    plot = options.plot
    try:
        plan, chosen = _plan_of(options), choices(options.policy)
        counts = gateway_counts(options.gateways)
        goals = goals_of(options.what_if) if options.what_if is not None else ()
        if plot is not None:
            check_plot(plot)
        answers = _run(plan, chosen, counts, goals)
    except BadSpec as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from None
    except ImportError as error:
        fail(f"--plot: {error}")
    except KeyboardInterrupt:
        raise typer.Exit(1) from None
    policies = {name: answer.found.figures.as_json() for name, answer in answers.items()}
    _tell(plan, policies, answers, goals, as_json=options.as_json)
    if plot is not None:
        source = options.trace.name if options.trace is not None else f"mix {options.mix}"
        try:
            write_plot(plot, policies, _heading(plan, answers, goals, source))
        except OSError as error:
            fail(f"the chart was not written: {error}")
    if not all(answer.found.meets for answer in answers.values()):
        raise typer.Exit(1)


def _plan_of(options: SimulateOptions) -> SimulationPlan:
    """Raises BadSpec."""
    own = dict(map(own_device, options.device or ()))
    return SimulationPlan(
        traffic=_traffic(options.trace, options.mix, options.seed),
        fleet=fleet_of(options.fleet, own, None if options.rtt is None else options.rtt / 1000),
        model=model_named(options.model),
        seed=options.seed,
        rate=options.rate,
        requests=options.requests,
        duration_s=options.duration,
        build=DeploymentBuild(options.slots, options.cold, options.spread, own),
        slo=Slo(options.slo_ttft, options.slo_tpot),
        rules=Rules(
            max_wait_s=options.max_wait or NEVER,
            mtbf_s=options.mtbf or NEVER,
            repair_s=options.repair,
            others_every_s=options.others / 1000 if options.others else None,
        ),
    )


def _traffic(trace: Path | None, mix: str | None, seed: int) -> Traffic:
    if trace is not None and mix is None:
        return TraceFile(trace)
    if mix is not None and trace is None:
        return Mix(mix, seed)
    raise BadSpec("--trace", "give either --trace FILE or --mix SPEC")


def _run(
    plan: SimulationPlan, chosen: list[PolicyChoice], counts: list[int], goals: tuple[Goal, ...]
) -> dict[str, FleetAnswer]:
    """Simulate each policy, with each number of gateways, on the fleet of ``plan``; with ``goals``, on the
    smallest that meets them."""
    answers: dict[str, FleetAnswer] = {}
    runs = [(choice, count) for choice in chosen for count in counts]
    for number, (choice, count) in enumerate(runs, 1):
        name = choice.name if count == 1 else f"{choice.name}, {count} gateways"
        watched = replace(plan, traffic=ReportedTraffic(plan.traffic, name, sys.stderr), gateways=count)
        if goals:
            note(f"{name}: the smallest fleet composed as {fleet_text(plan.fleet)} is searched")
            answer = smallest(watched, choice, goals, partial(_tell_trial, name, goals))
            if not answer.found.meets:
                note(f"{name}: {answer.found.fleet} is not enough, and more were not tried")
        else:
            of = "policy" if len(counts) == 1 else "run"
            note(f"{name}: {of} {number} of {len(runs)} on {fleet_text(plan.fleet)}")
            began_s = time.perf_counter()
            trial = Trial(watched, simulate(watched, choice), meets=True)
            took_s = time.perf_counter() - began_s
            note(f"{name}: {trial.figures.tally.requests:,} requests in {took_s:.1f} s")
            answer = FleetAnswer(trial, trial, (trial,))
        answers[name] = answer
    return answers


def _tell_trial(policy: str, goals: tuple[Goal, ...], trial: Trial) -> None:
    verdict = "is enough" if trial.meets else "is not enough"
    values = zip(goals, values_of(trial, goals), strict=True)
    note(
        f"{policy}: {trial.fleet} {verdict} ({', '.join(f'{goal.text}: {value}' for goal, value in values)})"
    )


def _assumed(plan: SimulationPlan, answer: FleetAnswer) -> str:
    times = "" if plan.rate == 1.0 else f", {plan.rate:g} times as fast as in the traffic"
    requests = answer.found.figures.tally.requests
    per_s = f"{answer.arrivals_per_s:.3g} requests per second"
    return f"at {per_s} ({requests:,} requests{times}), {plan.model.name}"


def _heading(
    plan: SimulationPlan, answers: dict[str, FleetAnswer], goals: tuple[Goal, ...], source: str
) -> Heading:
    """What a chart is of, so that it can be read without the command that drew it."""
    fleets = [f"{name} {answer.found.fleet}" for name, answer in answers.items()]
    first = next(iter(answers.values()))
    requests, per_s = first.found.figures.tally.requests, first.arrivals_per_s
    return Heading(
        f"Simulated scheduling policies: {plan.model.name}",
        (
            "Fleet: " + (" / ".join(fleets) if goals else fleet_text(plan.fleet)),
            f"Traffic: {source}, {requests:,} requests, {per_s:.3g} per s on average, seed {plan.seed}",
        ),
    )


def _tell(
    plan: SimulationPlan,
    policies: dict[str, dict[str, Any]],
    answers: dict[str, FleetAnswer],
    goals: tuple[Goal, ...],
    *,
    as_json: bool,
) -> None:
    if not as_json:
        several = any(each["gateways"] > 1 for each in policies.values())
        columns = (*COLUMNS, *GATEWAY_COLUMNS) if several else COLUMNS
        print_table(columns, rows_of(policies, several), "no policy was simulated")
        if goals:
            note(f"What if, {_assumed(plan, next(iter(answers.values())))}:")
            print_table(answer_columns(goals), answer_rows(answers, goals), "no policy was simulated")
        return
    output: dict[str, Any] = {
        "policies": policies,
        "fleet": fleet_text(plan.fleet),
        "devices": device_count(plan.fleet),
        "model": plan.model.name,
        "seed": plan.seed,
        "rate": plan.rate,
        "slo": {"ttft_s": plan.slo.ttft_s, "tpot_s": plan.slo.tpot_s},
    }
    if goals:
        output["what_if"] = {name: answer.as_json(goals) for name, answer in answers.items()}
    print_json(output)
