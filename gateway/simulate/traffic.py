"""The traffic of a simulation: requests in order of their arrival, read or made one by one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.domain import Tier


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
