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
from urllib.parse import urlsplit

API = "/v1"


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
    """Of a base URL, as OpenAI's clients are given one; ``/v1`` when it has no path. Raises BadPlan."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadPlan("URL", f"{url!r} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise BadPlan("URL", f"{url!r} is no base URL; write for example http://127.0.0.1:8700/v1")
    if parts.query or parts.fragment or parts.username:
        raise BadPlan("URL", f"a base URL has no user, query or fragment: {url!r}")
    if any(character <= " " or character == "\x7f" for character in key + parts.path):
        raise BadPlan("--api-key", "an API key holds no blanks or line breaks; was it copied with one?")
    try:
        tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
    except OSError as error:
        raise BadPlan("--ca-file", f"{ca_file} cannot be used: {error}") from error
    standard = 80 if tls is None else 443
    return BenchTarget(host, port or standard, parts.path.rstrip("/") or API, tls, key)


class Arrivals(StrEnum):
    """How the requests of an open loop follow each other."""

    POISSON = "poisson"
    """Independently of each other, as many users do."""
    CONSTANT = "constant"
    """At equal distances."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """One load. Times are seconds."""

    route: BenchRoute
    stream: bool
    concurrency: int
    """Requests at once; in an open loop the most there may be."""
    rate: float | None
    """Starts a second of an open loop; None: a closed one."""
    arrivals: Arrivals
    duration_s: float | None
    """How long requests are started and counted; None: until ``requests`` have been."""
    requests: int | None
    warmup_s: float
    """How long requests are sent before any counts."""
    timeout_s: float
    """The longest a request may take, from the moment it is sent."""
    seed: int


def starts_s(kind: Arrivals, rate: float, seed: int) -> Iterator[float]:
    """When requests are meant to start, in seconds after the first: endlessly, ``rate`` a second.

    The same seed gives the same times.
    """
    if kind is Arrivals.CONSTANT:
        return (number / rate for number in itertools.count())
    chance = random.Random(seed)
    return itertools.accumulate(iter(lambda: chance.expovariate(rate), None), initial=0.0)
