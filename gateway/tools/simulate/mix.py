"""Traffic made up from a description, without a trace.

``rate=20,duration=600;chat:share=3,input=400~0.8,output=200~0.6,prefix=1024x20;report:input=8000,output=500``

What comes first, without a name, is of the whole: ``rate`` (requests a second), ``duration`` (seconds) or
``requests``, ``cv`` (of the time between arrivals: 1 Poisson, 0 clockwork, more is bursty) and ``block``
(tokens of a prefix block). Then one part for each kind of request: ``share`` (weight), ``input`` and
``output`` (tokens), ``prefix=TOKENSxCOUNT`` (each begins, before its input, with one of COUNT shared
beginnings), ``tenants`` (how many), ``tier``, ``max_tokens``, ``deadline`` (seconds). A number of tokens is
``N``, ``LOW-HIGH`` (uniform), ``MEDIAN~SIGMA`` (log-normal) or ``expMEAN`` (exponential).
"""

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gateway.domain.request import Tier
from gateway.tools.simulate.inputs import BadSpec, Job, mistake_in

READY: Mapping[str, str] = {
    "chat": "rate=20,duration=600;chat:input=300~0.9,output=220~0.7,prefix=1024x8,tenants=20",
    "documents": "rate=2,duration=600;documents:input=12000~0.6,output=300~0.5,tenants=10",
    "invoices": "rate=12,duration=600;"
    "invoices:share=9,input=700,output=16;contracts:share=1,input=6000,output=1500",
    "agents": "rate=10,duration=600,cv=2;agents:input=600~1,output=120~0.8,prefix=6144x40,tenants=10",
}
"""Mixes by name."""

THERE_ARE = (
    f"there are: {', '.join(READY)}, or describe one, as in rate=20,duration=600;chat:input=400,output=200"
)

DEFAULT_DURATION_S = 600.0
MAX_TOKENS = 1_000_000
MAX_KINDS = 64
MAX_REQUESTS = 1_000_000_000
MAX_SIGMA = 5.0
_TOKENS = re.compile(
    r"(?P<n>\d+)|(?P<low>\d+)-(?P<high>\d+)|(?P<median>\d+)~(?P<sigma>\d+(?:\.\d+)?)|exp(?P<mean>\d+)"
)
_PREFIX = re.compile(r"(\d+)x(\d+)")
_NAME = re.compile(r"[a-zA-Z][\w-]{0,63}")
_Draw = Callable[[random.Random], int]
_Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class _Members(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    @classmethod
    def read(cls, text: str, whose: str) -> Self:
        """Parse ``member=value,…``. Raises BadSpec."""
        members: dict[str, str] = {}
        for part in filter(None, (each.strip() for each in text.split(","))):
            key, equals, value = (each.strip() for each in part.partition("="))
            if not equals or key not in cls.model_fields:
                names = ", ".join(sorted(cls.model_fields))
                raise BadSpec("--mix", f"{whose}: {part!r} is not one of {names} with a value")
            if key in members:
                raise BadSpec("--mix", f"{whose}: {key} is there twice")
            members[key] = value
        try:
            return cls.model_validate(members)
        except ValidationError as error:
            raise BadSpec("--mix", f"{whose}: {mistake_in(error)}") from None


class _Whole(_Members):
    """What comes first and is of all requests."""

    rate: float = Field(ge=1e-6, le=1e6)
    duration: float | None = Field(None, ge=0, le=1e9)
    requests: int | None = Field(None, ge=1, le=MAX_REQUESTS)
    cv: float = Field(1.0, ge=0, le=100)
    block: _Tokens = 256


def _tokens(text: str) -> _Draw:
    """What draws a number of tokens. Raises ValueError."""
    match = _TOKENS.fullmatch(text)
    if match is None:
        raise ValueError(f"must be N, LOW-HIGH, MEDIAN~SIGMA or expMEAN, not {text!r}")
    found = {part: float(value) for part, value in match.groupdict().items() if value is not None}
    if found.get("sigma", 0.0) > MAX_SIGMA:
        raise ValueError(f"has a sigma over {MAX_SIGMA:g}")
    if max(found.values()) > MAX_TOKENS:
        raise ValueError(f"is more than {MAX_TOKENS:,} tokens")
    if "n" in found:
        return lambda chance: _whole(found["n"])
    if "low" in found:
        return lambda chance: _whole(chance.uniform(found["low"], found["high"]))
    if "median" in found:
        mu = math.log(max(1.0, found["median"]))
        return lambda chance: _whole(chance.lognormvariate(mu, found["sigma"]))
    return lambda chance: _whole(chance.expovariate(1 / max(1.0, found["mean"])))


def _whole(tokens: float) -> int:
    return min(MAX_TOKENS, max(1, round(tokens)))


def _prefix(text: str) -> tuple[int, int]:
    """Tokens and number of shared beginnings. Raises ValueError."""
    match = _PREFIX.fullmatch(text)
    if match is None or not 0 < int(match[1]) <= MAX_TOKENS or not 0 < int(match[2]) <= 100_000:
        raise ValueError(f"must be TOKENSxCOUNT, as 1024x20, not {text!r}")
    return int(match[1]), int(match[2])


class _Kind(_Members):
    """One kind of request."""

    share: float = Field(1.0, ge=1e-6, le=1e6)
    input: Annotated[_Draw, BeforeValidator(_tokens)]
    output: Annotated[_Draw, BeforeValidator(_tokens)]
    prefix: Annotated[tuple[int, int], BeforeValidator(_prefix)] = (0, 0)
    tenants: int = Field(1, ge=1, le=1_000_000)
    tier: Tier = Tier.STANDARD
    max_tokens: _Tokens | None = None
    deadline: float | None = Field(None, ge=0, le=1e9)


class Mix:
    """Raises BadSpec for a description that says nothing sensible."""

    def __init__(self, spec: str, seed: int) -> None:
        if _NAME.fullmatch(spec.strip()) and spec.strip() not in READY:
            raise BadSpec("--mix", f"no mix is called {spec.strip()!r}; {THERE_ARE}")
        whole, *kinds = [part.strip() for part in READY.get(spec.strip(), spec).split(";")]
        self._seed = seed
        self._whole = _Whole.read(whole, "the whole")
        self.block_tokens = self._whole.block
        if not 0 < len(kinds) <= MAX_KINDS:
            raise BadSpec(
                "--mix", f"{len(kinds)} kinds of requests, and it takes 1 to {MAX_KINDS}: NAME:input=…"
            )
        self._kinds = [_kind(part) for part in kinds]
        self._prefixes = [
            _shared_prefixes(number, kind, self.block_tokens) for number, (_, kind) in enumerate(self._kinds)
        ]

    def jobs(self) -> Iterator[Job]:
        """See :class:`~gateway.tools.simulate.inputs.Traffic`."""
        chance, whole = random.Random(self._seed), self._whole
        weights = list(itertools.accumulate(kind.share for _, kind in self._kinds))
        last_s = whole.duration
        if last_s is None:
            last_s = DEFAULT_DURATION_S if whole.requests is None else math.inf
        at_s = 0.0
        for number in itertools.count():
            if at_s > last_s or number == whole.requests:
                return
            (chosen,) = chance.choices(range(len(self._kinds)), cum_weights=weights)
            yield self._draw(chosen, at_s, chance)
            at_s += self._gap_s(chance)

    def _draw(self, number: int, at_s: float, chance: random.Random) -> Job:
        (name, kind), prefixes = self._kinds[number], self._prefixes[number]
        prefix = chance.choice(prefixes) if prefixes else ()
        input_tokens, output_tokens = kind.prefix[0] + kind.input(chance), kind.output(chance)
        if kind.max_tokens is not None:
            output_tokens = min(kind.max_tokens, output_tokens)
        return Job(
            at_s,
            input_tokens,
            output_tokens,
            prefix,
            kind.max_tokens,
            kind.tier,
            f"{name}-{chance.randrange(kind.tenants)}",
            deadline_s=kind.deadline,
            kind=name,
        )

    def _gap_s(self, chance: random.Random) -> float:
        if self._whole.cv < 1e-6:
            return 1 / self._whole.rate
        variance = self._whole.cv * self._whole.cv
        return chance.gammavariate(1 / variance, variance / self._whole.rate)


def _kind(part: str) -> tuple[str, _Kind]:
    """A kind of request and its name. Raises BadSpec."""
    name, colon, rest = part.partition(":")
    if not colon or not _NAME.fullmatch(name):
        raise BadSpec("--mix", f"{part!r} must begin with a name and a colon, as chat:input=400,output=200")
    return name, _Kind.read(rest, name)


def _shared_prefixes(number: int, kind: _Kind, block_tokens: int) -> list[tuple[int, ...]]:
    """The whole blocks of each shared beginning, named unlike those of other kinds."""
    tokens, count = kind.prefix
    return [
        tuple(((number << 20 | each) << 20) | block for block in range(tokens // block_tokens))
        for each in range(count)
    ]
