"""What a bench is asked to do, when its requests are meant to start, and what goes wrong.

Messages of errors are fit for the person at the terminal.
"""

import itertools
import random
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gateway.cli_support.console import number_option

API = "/v1"
DEFAULT_URL = "http://127.0.0.1:8700/v1"
CONCURRENCY, OPEN_CONCURRENCY, MAX_CONCURRENCY = 16, 1024, 50_000
DURATION_S = 30.0
MAX_COUNT = 1_000_000_000
"""The most requests, and the most tokens of an answer."""


class BadPlan(Exception):
    """What was asked for cannot be done; ``option`` says which part of it."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class TargetUnusable(Exception):
    """The endpoint does not answer as one must before a load makes sense."""


class RequestFailed(Exception):
    """One request failed. ``kind`` is one of few, for counting; the message may hold what the server said."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BenchRoute(StrEnum):
    """What is asked."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"

    @property
    def path(self) -> str:
        """Below the base URL."""
        return "/chat/completions" if self is BenchRoute.CHAT else f"/{self.value}"


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """Where it goes. ``prefix`` is the path of the base URL, without a slash at its end."""

    host: str
    port: int
    prefix: str
    tls: ssl.SSLContext | None
    key: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.authority}{self.prefix}"


def target_of(url: str, key: str, ca_file: Path | None = None) -> BenchTarget:
    """The parts of a base URL as OpenAI's clients take it; ``/v1`` if it has no path. Raises BadPlan."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadPlan("URL", f"{url!r} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise BadPlan("URL", f"{url!r} is no base URL; write for example http://127.0.0.1:8700/v1")
    if parts.query or parts.fragment or parts.username:
        raise BadPlan("URL", f"a base URL has no user, query or fragment: {url!r}")
    if _holds_blanks(host + parts.path):
        raise BadPlan("URL", f"a base URL holds no blanks: {url!r}")
    if _holds_blanks(key):
        raise BadPlan("--key", "an API key holds no blanks or line breaks; was it copied with one?")
    try:
        tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
    except OSError as error:
        raise BadPlan("--ca-file", f"{ca_file} cannot be used: {error}") from error
    standard = 80 if tls is None else 443
    return BenchTarget(host, port or standard, parts.path.rstrip("/") or API, tls, key)


def _holds_blanks(text: str) -> bool:
    """Whether it would end a word or a line of a request."""
    return any(character <= " " or character == "\x7f" for character in text)


class Arrivals(StrEnum):
    """How the requests of an open loop follow each other."""

    POISSON = "poisson"
    """Independently of each other, as many users do."""
    CONSTANT = "constant"
    """At equal distances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """One load: the options of the command. Times are seconds."""

    url: Annotated[
        str, typer.Argument(envvar="OPENAI_BASE_URL", help="The endpoint's base URL.", metavar="URL")
    ] = DEFAULT_URL
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
    ] = ""
    url_option: Annotated[
        str | None, typer.Option("--url", help="The base URL, in place of the argument.", metavar="URL")
    ] = None
    model: Annotated[
        str | None, typer.Option(help="Default: the one on offer, if there is just one.", metavar="NAME")
    ] = None
    route: Annotated[BenchRoute, typer.Option(help="What to ask.")] = BenchRoute.CHAT
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Streamed answers.")] = True
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_CONCURRENCY,
            help=f"Requests at once, each followed by the next (closed loop, default {CONCURRENCY}); "
            f"with --rate the most there may be (default {OPEN_CONCURRENCY}).",
        ),
    ] = None
    rate: Annotated[
        float | None,
        number_option("Start so many requests a second, however the others fare (open loop).", metavar="N"),
    ] = None
    arrivals: Annotated[Arrivals, typer.Option(help="How they follow each other with --rate.")] = (
        Arrivals.POISSON
    )
    duration_s: Annotated[
        float | None,
        number_option(f"Seconds that count. Default: {DURATION_S:g}, if no --requests.", "--duration"),
    ] = None
    requests: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, help="End after so many that count.")
    ] = None
    warmup_s: Annotated[float, number_option("Seconds of load before any counts.", "--warmup", least=0.0)] = (
        2.0
    )
    prompt_tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Length of made prompts, each unlike the others.")
    ] = 128
    max_tokens: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="The most an answer may have.")] = 128
    prompts: Annotated[
        Path | None,
        typer.Option(help="Prompts instead: a line each, or .jsonl with prompt or messages.", metavar="FILE"),
    ] = None
    body: Annotated[
        str, typer.Option(help='Further members of the body, as {"temperature": 0}.', metavar="JSON")
    ] = "{}"
    timeout_s: Annotated[float, number_option("The longest an answer may take.", "--timeout")] = 600.0
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 0
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust for TLS.", metavar="FILE")] = (
        None
    )
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write all figures there; - is stdout.", metavar="FILE")
    ] = None

    @property
    def most_running(self) -> int:
        """Requests at once; in an open loop the most there may be."""
        return self.concurrency or (CONCURRENCY if self.rate is None else OPEN_CONCURRENCY)


def starts_s(kind: Arrivals, rate: float, seed: int) -> Iterator[float]:
    """When requests are meant to start, in seconds after the first: endlessly, ``rate`` a second.

    The same seed gives the same times.
    """
    if kind is Arrivals.CONSTANT:
        return (number / rate for number in itertools.count())
    chance = random.Random(seed)
    return itertools.accumulate(iter(lambda: chance.expovariate(rate), None), initial=0.0)
