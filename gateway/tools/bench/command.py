"""The command itself. Exit codes: 0 some requests were right, 1 none was, 2 wrong usage."""

import asyncio
import contextlib
import itertools
import math
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from gateway.tools.bench.driver import Driver, models_of
from gateway.tools.bench.plan import (
    Arrivals,
    BadPlan,
    BenchPlan,
    BenchRoute,
    BenchTarget,
    TargetUnusable,
    target_of,
)
from gateway.tools.bench.prompts import bodies, made_prompts, read_prompts
from gateway.tools.bench.report import (
    TABLE_COLUMNS,
    bench_figures,
    progress_shown,
    summary_lines,
    times_table,
    warnings_of,
)
from gateway.tools.console import fail, note, print_json, print_table
from shared.process.startup import raise_file_limit

DEFAULT_URL = "http://127.0.0.1:8700/v1"
_CONCURRENCY = 16
_OPEN_CONCURRENCY = 1024
_DURATION_S = 30.0
_MOST_CONCURRENCY = 50_000
_MOST = 1_000_000_000
"""Of requests, and of tokens of an answer."""
_SPARE_FILES = 64
_MODELS_S = 30.0
_SHOWN_MODELS = 10
_STDOUT = "-"

EPILOG = (
    "The API key comes from --key or OPENAI_API_KEY. Ctrl-C ends early and tells what was measured so far."
)


def register(parent: typer.Typer) -> None:
    """Add ``trunkline bench``."""
    parent.command("bench", epilog=EPILOG)(bench)


def bench(
    url: Annotated[
        str, typer.Argument(envvar="OPENAI_BASE_URL", help="The endpoint's base URL.", metavar="URL")
    ] = DEFAULT_URL,
    key: Annotated[
        str,
        typer.Option(
            "--key",
            "--api-key",
            envvar="OPENAI_API_KEY",
            help="Its API key.",
            show_default=False,
            metavar="KEY",
        ),
    ] = "",
    url_option: Annotated[
        str | None, typer.Option("--url", help="The base URL, in place of the argument.", metavar="URL")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Default: the one on offer, if there is just one.", metavar="NAME")
    ] = None,
    route: Annotated[BenchRoute, typer.Option(help="What to ask.")] = BenchRoute.CHAT,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Streamed answers.")] = True,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST_CONCURRENCY,
            help=f"Requests at once, each followed by the next (closed loop, default {_CONCURRENCY}); "
            f"with --rate the most there may be (default {_OPEN_CONCURRENCY}).",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Start so many requests a second, however the others fare (open loop)."),
    ] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="How they follow each other with --rate.")] = (
        Arrivals.POISSON
    ),
    duration: Annotated[
        float | None,
        typer.Option(help=f"Seconds that count. Default: {_DURATION_S:g}, if no --requests.", metavar="S"),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="End after so many that count.")
    ] = None,
    warmup: Annotated[float, typer.Option(help="Seconds of load before any counts.", metavar="S")] = 2.0,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Length of made prompts, each unlike the others.")
    ] = 128,
    max_tokens: Annotated[int, typer.Option(min=1, max=_MOST, help="The most an answer may have.")] = 128,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Prompts instead: a line each, or .jsonl with prompt or messages.", metavar="FILE"),
    ] = None,
    body: Annotated[
        str, typer.Option(help='Further members of the body, as {"temperature": 0}.', metavar="JSON")
    ] = "{}",
    timeout: Annotated[float, typer.Option(help="The longest an answer may take.", metavar="S")] = 600.0,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 0,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates to trust for TLS.", metavar="FILE")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write all figures there; - is stdout.", metavar="FILE")
    ] = None,
) -> None:
    """Load an OpenAI endpoint, this gateway or any other, and tell how it bears it.

    Time to the first token, gaps between tokens, latency, throughput, errors.

    Example: trunkline bench http://127.0.0.1:8700/v1 --concurrency 64 --duration 60

    Example: trunkline bench https://llm.example.com/v1 --rate 20 --model llama-3 --json run.json
    """
    try:
        plan = BenchPlan(
            route=route,
            stream=stream and route is not BenchRoute.EMBEDDINGS,
            concurrency=concurrency or (_CONCURRENCY if rate is None else _OPEN_CONCURRENCY),
            rate=rate,
            arrivals=arrivals,
            duration_s=_DURATION_S if duration is None and requests is None else duration,
            requests=requests,
            warmup_s=warmup,
            timeout_s=timeout,
            seed=seed,
        )
        _check(plan)
        more, target = _members(body), target_of(url_option or url, key, ca_file)
        texts = made_prompts(prompt_tokens, seed) if prompts is None else read_prompts(prompts)
        ask = partial(bodies, texts, route=route, max_tokens=max_tokens, stream=plan.stream, more=more)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            figures = runner.run(_measure(target, plan, model, ask))
    except BadPlan as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from None
    except TargetUnusable as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(1) from None
    _tell(figures, json_file)
    if not figures["requests"]["right"] and (figures["errors"] or not figures["tokens"]["per_s"]):
        raise typer.Exit(1)


def _check(plan: BenchPlan) -> None:
    """Raises BadPlan for numbers that make no load."""
    for option, value, least in (
        ("--rate", plan.rate, 0.0),
        ("--duration", plan.duration_s, 0.0),
        ("--timeout", plan.timeout_s, 0.0),
    ):
        if value is not None and not least < value < math.inf:
            raise BadPlan(option, f"must be more than {least:g}, not {value:g}")
    if not 0 <= plan.warmup_s < math.inf:
        raise BadPlan("--warmup", f"must be at least 0, not {plan.warmup_s:g}")
    limit = raise_file_limit()
    if limit is not None and plan.concurrency + _SPARE_FILES > limit:
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
    target: BenchTarget, plan: BenchPlan, model: str | None, ask: Callable[..., Iterator[bytes]]
) -> dict[str, Any]:
    """Run it, showing how it goes. Raises TargetUnusable and BadPlan."""
    chosen = model or await _only_model(target)
    asked = ask(model=chosen)
    first = next(asked)
    driver = Driver(target, plan, itertools.chain((first,), asked))
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


def _loop_factory() -> Any:
    """uvloop's event loop where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
