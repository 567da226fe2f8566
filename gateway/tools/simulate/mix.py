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
from dataclasses import dataclass

from gateway.domain.request import Tier
from gateway.tools.simulate.inputs import BadSpec, Job, number_in, whole_number_in

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
DEFAULT_BLOCK_TOKENS = 256
MAX_TOKENS = 1_000_000
MAX_KINDS = 64
MAX_REQUESTS = 1_000_000_000
MAX_SIGMA = 5.0
_TOKENS = re.compile(
    r"(?P<n>\d+)|(?P<low>\d+)-(?P<high>\d+)|(?P<median>\d+)~(?P<sigma>\d+(?:\.\d+)?)|exp(?P<mean>\d+)"
)
_PREFIX = re.compile(r"(\d+)x(\d+)")
_NAME = re.compile(r"[a-zA-Z][\w-]{0,63}")
_WHOLE = frozenset(("rate", "duration", "requests", "cv", "block"))
_KIND = frozenset(("share", "input", "output", "prefix", "tenants", "tier", "max_tokens", "deadline"))

_Draw = Callable[[random.Random], int]


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    share: float
    input_tokens: _Draw
    output_tokens: _Draw
    prefixes: tuple[tuple[int, ...], ...]
    """The whole blocks of each shared beginning."""
    prefix_tokens: int
    tenants: int
    tier: Tier
    max_tokens: int | None
    deadline_s: float | None

    def draw(self, at_s: float, chance: random.Random) -> Job:
        prefix = chance.choice(self.prefixes) if self.prefixes else ()
        return Job(
            at_s,
            self.prefix_tokens + self.input_tokens(chance),
            self.output_tokens(chance)
            if self.max_tokens is None
            else min(self.max_tokens, self.output_tokens(chance)),
            prefix,
            self.max_tokens,
            self.tier,
            f"{self.name}-{chance.randrange(self.tenants)}",
            deadline_s=self.deadline_s,
            kind=self.name,
        )


class Mix:
    """Raises BadSpec for a description that says nothing sensible."""

    def __init__(self, spec: str, seed: int) -> None:
        if _NAME.fullmatch(spec.strip()) and spec.strip() not in READY:
            raise BadSpec("--mix", f"no mix is called {spec.strip()!r}; {THERE_ARE}")
        whole, *kinds = [part.strip() for part in READY.get(spec.strip(), spec).split(";")]
        members = _members(whole, _WHOLE, "the whole")
        self._seed = seed
        self._rate = _number(members, "rate", None, 1e-6, 1e6)
        self._requests = None
        if "requests" in members:
            self._requests = _whole_number(members, "requests", 1, MAX_REQUESTS)
        default_s = DEFAULT_DURATION_S if self._requests is None else math.inf
        self._duration_s = _number(members, "duration", default_s, 0.0, 1e9)
        self._cv = _number(members, "cv", 1.0, 0.0, 100.0)
        self.block_tokens = _whole_number(members, "block", DEFAULT_BLOCK_TOKENS, MAX_TOKENS)
        if not 0 < len(kinds) <= MAX_KINDS:
            raise BadSpec(
                "--mix", f"{len(kinds)} kinds of requests, and it takes 1 to {MAX_KINDS}: NAME:input=…"
            )
        self._kinds = [_kind(number, part, self.block_tokens) for number, part in enumerate(kinds)]

    def jobs(self) -> Iterator[Job]:
        """See :class:`~gateway.tools.simulate.inputs.Traffic`."""
        chance = random.Random(self._seed)
        weights = list(itertools.accumulate(kind.share for kind in self._kinds))
        at_s = 0.0
        for number in itertools.count():
            if at_s > self._duration_s or number == self._requests:
                return
            (kind,) = chance.choices(self._kinds, cum_weights=weights)
            yield kind.draw(at_s, chance)
            at_s += self._gap_s(chance)

    def _gap_s(self, chance: random.Random) -> float:
        if self._cv < 1e-6:
            return 1 / self._rate
        variance = self._cv * self._cv
        return chance.gammavariate(1 / variance, variance / self._rate)


def _kind(number: int, part: str, block_tokens: int) -> _Kind:
    name, colon, rest = part.partition(":")
    if not colon or not _NAME.fullmatch(name):
        raise BadSpec("--mix", f"{part!r} must begin with a name and a colon, as chat:input=400,output=200")
    members = _members(rest, _KIND, name)
    prefix_tokens, prefixes = _prefix(members.get("prefix"), name)
    blocks = prefix_tokens // block_tokens
    try:
        tier = Tier(members.get("tier", Tier.STANDARD))
    except ValueError:
        raise BadSpec(
            "--mix", f"{name}: tier must be one of {', '.join(Tier)}, not {members['tier']!r}"
        ) from None
    return _Kind(
        name=name,
        share=_number(members, "share", 1.0, 1e-6, 1e6),
        input_tokens=_tokens(members, "input", name),
        output_tokens=_tokens(members, "output", name),
        prefixes=tuple(
            tuple(((number << 20 | each) << 20) | block for block in range(blocks))
            for each in range(prefixes)
        ),
        prefix_tokens=prefix_tokens,
        tenants=_whole_number(members, "tenants", 1, 1_000_000),
        tier=tier,
        max_tokens=_whole_number(members, "max_tokens", 1, MAX_TOKENS) if "max_tokens" in members else None,
        deadline_s=_number(members, "deadline", None, 0.0, 1e9) if "deadline" in members else None,
    )


def _members(text: str, known: frozenset[str], whose: str) -> dict[str, str]:
    members: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or key not in known:
            raise BadSpec("--mix", f"{whose}: {part!r} is not one of {', '.join(sorted(known))} with a value")
        if key in members:
            raise BadSpec("--mix", f"{whose}: {key} is there twice")
        members[key] = value
    return members


def _number(members: Mapping[str, str], key: str, default: float | None, least: float, most: float) -> float:
    if key not in members:
        if default is None:
            raise BadSpec("--mix", f"{key}= is missing")
        return default
    value = number_in(members[key], least, most)
    if value is None:
        raise BadSpec("--mix", f"{key} must be a number from {least:g} to {most:g}, not {members[key]!r}")
    return value


def _whole_number(members: Mapping[str, str], key: str, default: int, most: int) -> int:
    text = members.get(key, str(default))
    value = whole_number_in(text, most)
    if value is None:
        raise BadSpec("--mix", f"{key} must be a whole number from 1 to {most:,}, not {text!r}")
    return value


def _prefix(text: str | None, name: str) -> tuple[int, int]:
    if text is None:
        return 0, 0
    match = _PREFIX.fullmatch(text)
    if match is None or not 0 < int(match[1]) <= MAX_TOKENS or not 0 < int(match[2]) <= 100_000:
        raise BadSpec("--mix", f"{name}: prefix must be TOKENSxCOUNT, as 1024x20, not {text!r}")
    return int(match[1]), int(match[2])


def _tokens(members: Mapping[str, str], key: str, name: str) -> _Draw:
    match = _TOKENS.fullmatch(members.get(key, ""))
    if match is None:
        raise BadSpec(
            "--mix", f"{name}: {key} must be N, LOW-HIGH, MEDIAN~SIGMA or expMEAN, not {members.get(key)!r}"
        )
    found = {part: float(value) for part, value in match.groupdict().items() if value is not None}
    if found.get("sigma", 0.0) > MAX_SIGMA:
        raise BadSpec("--mix", f"{name}: {key} has a sigma over {MAX_SIGMA:g}")
    if max(found.values()) > MAX_TOKENS:
        raise BadSpec("--mix", f"{name}: {key} is more than {MAX_TOKENS:,} tokens")
    if "n" in found:
        return lambda chance: _whole(found["n"])
    if "low" in found:
        return lambda chance: _whole(chance.uniform(found["low"], found["high"]))
    if "median" in found:
        return lambda chance: _whole(
            chance.lognormvariate(math.log(max(1.0, found["median"])), found["sigma"])
        )
    return lambda chance: _whole(chance.expovariate(1 / max(1.0, found["mean"])))


def _whole(tokens: float) -> int:
    return min(MAX_TOKENS, max(1, round(tokens)))
