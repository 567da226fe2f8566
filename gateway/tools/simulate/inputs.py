"""What a simulation is given: requests in order of their arrival.

What is wrong with a description of it is told with messages fit for the person at the terminal."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.domain.request import Tier


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


def number_in(text: str, least: float, most: float) -> float | None:
    """The number that is written there; None for another than from ``least`` to ``most``."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if least <= value <= most else None


def whole_number_in(text: str, most: int) -> int | None:
    """The whole number that is written there; None for another than from 1 to ``most``."""
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:12]) <= most else None


@dataclass(frozen=True, slots=True)
class Job:
    """One request and what it truly costs. ``at_s`` counts from the start of the traffic.

    ``prefix`` names the whole blocks its prompt begins with, each of :attr:`Traffic.block_tokens` tokens: two
    prompts share what the same names begin. ``max_tokens`` is what its client allowed, None for nothing said;
    ``kind`` the part of a mix it belongs to.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    max_tokens: int | None = None
    tier: Tier = Tier.STANDARD
    tenant: str = ""
    session_key: str | None = None
    deadline_s: float | None = None
    """How long after its arrival it is still wanted."""
    kind: str = ""


class Traffic(Protocol):
    """Where jobs come from. The same traffic gives the same jobs whenever it is asked."""

    block_tokens: int

    def jobs(self) -> Iterator[Job]:
        """In order of ``at_s``. Raises BadTrace where a trace cannot be read further."""
        ...
