"""The command itself. Exit codes: 0 some requests were right, 1 none was, 2 wrong usage."""

import asyncio
import contextlib
import itertools
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import typer

from gateway.cli_support.console import command_with, fail, note, print_json, print_table
from gateway.tools.bench.driver import Driver, models_of
from gateway.tools.bench.plan import (
    DURATION_S,
    BadPlan,
    BenchPlan,
    BenchRoute,
    BenchTarget,
    TargetUnusable,
    target_of,
)
from gateway.tools.bench.prompts import Prompts, bodies, made_prompts, read_prompts
from gateway.tools.bench.report import (
    TABLE_COLUMNS,
    bench_figures,
    progress_shown,
    summary_lines,
    times_table,
    warnings_of,
)
from shared.process.event_loop import event_loop_factory
from shared.process.startup import raise_file_limit

_SPARE_FILES = 64
_MODELS_S = 30.0
_SHOWN_MODELS = 10
_STDOUT = "-"

EPILOG = (
    "The API key comes from --key or OPENAI_API_KEY. Ctrl-C ends early and tells what was measured so far."
)


def register(parent: typer.Typer) -> None:
    """Add ``trunkline bench``."""
    parent.command("bench", epilog=EPILOG)(command_with(BenchPlan, bench))


def bench(plan: BenchPlan) -> None:
    """Load an OpenAI endpoint, this gateway or any other, and tell how it bears it.

    Time to the first token, gaps between tokens, latency, throughput, errors.

    Example: trunkline bench http://127.0.0.1:8700/v1 --concurrency 64 --duration 60

    Example: trunkline bench https://llm.example.com/v1 --rate 20 --model llama-3 --json run.json
    """
    lasts_s = DURATION_S if plan.duration_s is None and plan.requests is None else plan.duration_s
    streamed = plan.stream and plan.route is not BenchRoute.EMBEDDINGS
    plan = replace(plan, stream=streamed, duration_s=lasts_s)
    try:
        _check_files(plan)
        more, target = _members(plan.body), target_of(plan.url_option or plan.url, plan.key, plan.ca_file)
        if plan.prompts is None:
            prompts: Prompts = made_prompts(plan.prompt_tokens, plan.seed)
        else:
            prompts = read_prompts(plan.prompts)
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            figures = runner.run(_measure(target, plan, prompts, more))
    except BadPlan as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from None
    except TargetUnusable as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(1) from None
    _tell(figures, plan.json_file)
    if not figures["requests"]["right"] and (figures["errors"] or not figures["tokens"]["per_s"]):
        raise typer.Exit(1)


def _check_files(plan: BenchPlan) -> None:
    """Raises BadPlan for more connections than this process may have open files, and for figures that could
    not be written once they were measured."""
    if plan.json_file not in (None, _STDOUT) and not Path(plan.json_file).parent.is_dir():
        raise BadPlan("--json", f"{plan.json_file} cannot be written: there is no such directory")
    limit = raise_file_limit()
    if limit is not None and plan.most_running + _SPARE_FILES > limit:
        most = limit - _SPARE_FILES
        raise BadPlan(
            "--concurrency", f"this process may have {limit} files open, enough for {most}: ulimit -n"
        )


def _members(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadPlan("--body", f"{text!r} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadPlan("--body", f"{text!r} is no JSON object")
    return value


async def _measure(
    target: BenchTarget, plan: BenchPlan, prompts: Prompts, more: dict[str, Any]
) -> dict[str, Any]:
    """Run it, showing how it goes. Raises TargetUnusable and BadPlan."""
    chosen = plan.model or await _only_model(target)
    requests = bodies(prompts, plan, chosen, more)
    first = next(requests)
    driver = Driver(target, plan, itertools.chain((first,), requests))
    note(f"{target.url}, model {chosen}; Ctrl-C ends early")
    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends without figures
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, driver.stop)
    async with progress_shown(driver, plan, sys.stderr):
        await driver.run()
    return bench_figures(driver, plan, target, chosen)


async def _only_model(target: BenchTarget) -> str:
    names = await models_of(target, _MODELS_S)
    if len(names) == 1:
        return names[0]
    if not names:
        raise TargetUnusable(f"{target.url} offers no model; name one with --model")
    shown_names = ", ".join(names[:_SHOWN_MODELS]) + (", …" if len(names) > _SHOWN_MODELS else "")
    raise BadPlan("--model", f"needed: {target.url} offers {len(names)} models: {shown_names}")


def _tell(figures: dict[str, Any], json_file: str | None) -> None:
    """Errors and warnings to stderr; figures to stdout, as JSON or as text."""
    for line in warnings_of(figures):
        note(line)
    if json_file == _STDOUT:
        for line in summary_lines(figures):
            note(line)
        print_json(figures)
        return
    for line in summary_lines(figures):
        print(line)  # noqa: T201
    print_table(TABLE_COLUMNS, times_table(figures), "nothing was answered")
    if json_file is not None:
        try:
            Path(json_file).write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
        except OSError as error:
            fail(f"the figures were not written: {error}")
