"""What a simulation is given: requests in order of their arrival.

Messages of errors are fit for the person at the terminal."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError

from gateway.domain.request import Tier
from shared.process.excerpt import shortened


class BadSpec(Exception):
    """What was asked for cannot be simulated; ``option`` says which part of it."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class BadTrace(BadSpec):
    """A trace that cannot be read, or not from ``line`` (1 is the first; 0 is the file as a whole) on."""

    def __init__(self, name: str, line: int, message: str) -> None:
        super().__init__("--trace", f"{name}, line {line}: {message}" if line else f"{name}: {message}")
        self.line = line


_UNKNOWN = frozenset(("extra_forbidden", "unexpected_keyword_argument"))


def mistake_in(error: ValidationError) -> str:
    """The first thing that is wrong: which member it is, what it must be, and what it is."""
    errors = error.errors(include_url=False, include_context=False)
    first = next((each for each in errors if each["type"] in _UNKNOWN), errors[0])
    name = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
    if first["type"] == "missing":
        return f"{name} is missing"
    if first["type"] in _UNKNOWN:
        return f"no member is called {name!r}"
    if first["type"] in ("value_error", "json_invalid"):
        return f"{name} {message}".strip()
    return f"{name} {message}, not {shortened(repr(first['input']))}".strip()


MAX_TOKENS = 10_000_000
MAX_BLOCKS = 100_000

Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS), AfterValidator(lambda tokens: max(1, tokens))]
Blocks = Annotated[tuple[int, ...], Field(max_length=MAX_BLOCKS)]
_Text = Annotated[str, Field(max_length=256), BeforeValidator(lambda text: text or "")]


@dataclass(frozen=True, slots=True)
class Job:
    """One request and what it truly costs, in the form in which a trace of Trunkline's own has it. ``at_s``
    counts from the start of the traffic.

    ``prefix`` names the whole blocks its prompt begins with, each of :attr:`Traffic.block_tokens` tokens: two
    prompts share what the same names begin. ``max_tokens`` is what its client allowed, None for nothing said;
    ``kind`` the part of a mix it belongs to.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    at_s: float
    input_tokens: Tokens
    output_tokens: Tokens
    prefix: Blocks = ()
    max_tokens: Tokens | None = None
    tier: Tier = Tier.STANDARD
    tenant: _Text = ""
    session_key: Annotated[_Text, Field(alias="session")] = ""
    deadline_s: float | None = None
    """How long after its arrival it is still wanted."""
    kind: _Text = ""
    cached_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    """Tokens of its prompt that any deployment finds in its cache, whatever came there before."""


class Traffic(Protocol):
    """Where jobs come from. The same traffic gives the same jobs whenever it is asked."""

    @property
    def block_tokens(self) -> int: ...
    def jobs(self) -> Iterator[Job]:
        """In order of ``at_s``. Raises BadTrace where a trace cannot be read further."""
        ...
