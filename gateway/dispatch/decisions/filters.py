"""Which records somebody asks for. Pure."""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.dispatch.decisions.records import KeptRequest

KINDS = ("recent", "slow", "failed")
STATES = ("queued", "running", "answered", "failed", "cancelled")
MOST = 500
USUAL = 100
TEXT_CHARS = 512

Position = tuple[int, str, str]
"""Of a record in the list: when it arrived in milliseconds since 1970, its process and its id."""

_SEPARATOR = "|"


class BadFilter(ValueError):
    """A parameter that there is not, or a value that it cannot have. The message is for the client."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter


def position_of(record: KeptRequest, process: str) -> Position:
    """The list is in this order, the greatest first."""
    return int(record.began_at_s * 1000), process, record.facts.id


def cursor_of(position: Position) -> str:
    """``position`` as ``next`` gives it."""
    return _SEPARATOR.join(map(str, position))


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """None stands for what is not asked."""

    kind: str = "recent"
    state: str | None = None
    model: str | None = None
    tenant: str | None = None
    key: str | None = None
    agent: str | None = None
    since: float | None = None
    slow_than: float | None = None
    limit: int = USUAL
    after: Position | None = None

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "RecordFilter":
        """From the parameters of a query. Raises BadFilter."""
        found = cls()
        for name, text in query.items():
            parse = _PARSERS.get(name)
            if parse is None:
                raise BadFilter(name[:100], f"There is no such parameter; there are: {', '.join(_PARSERS)}.")
            try:
                found = replace(found, **{name: parse(text)})
            except ValueError as error:
                raise BadFilter(name, f"{error}.") from None
        return found

    def takes(self, record: KeptRequest, slow_s: float) -> bool:
        """Whether ``record`` is asked for; ``slow_s`` says which requests are slow."""
        facts, state = record.facts, record.state
        if self.kind == "slow" and record.first_s < slow_s:
            return False
        if self.kind == "failed" and state != "failed":
            return False
        return (
            (self.state is None or state == self.state)
            and (self.model is None or self.model in (facts.model, facts.alias))
            and (self.tenant is None or facts.tenant == self.tenant)
            and (self.key is None or self.key in (record.key_name, facts.key_id))
            and (self.agent is None or any(_agent(each) == self.agent for each in facts.deployments))
            and (self.since is None or record.began_at_s >= self.since)
            and (self.slow_than is None or facts.total_s >= self.slow_than)
        )

    def first(self, records: Iterable[tuple[Position, KeptRequest]]) -> list[tuple[Position, KeptRequest]]:
        """Those of the page that is asked for and one more, if there is one, in order. ``records`` are those
        that :meth:`takes` takes."""
        after = self.after
        behind = (each for each in records if after is None or each[0] < after)
        return heapq.nlargest(self.limit + 1, behind, key=lambda each: each[0])


def _agent(deployment: str) -> str:
    return deployment.partition("/")[0]


def _one_of(values: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"Must be one of {', '.join(values)}")
        return text

    return parse


def _text(text: str) -> str:
    if not 0 < len(text) <= TEXT_CHARS:
        raise ValueError(f"Must be 1 to {TEXT_CHARS} characters long")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("Must be a number of seconds, 0 or more")
    return value


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) <= MOST):
        raise ValueError(f"Must be a whole number from 1 to {MOST}")
    return int(text)


def _after(text: str) -> Position:
    at, _, rest = text.partition(_SEPARATOR)
    process, separator, id_ = rest.partition(_SEPARATOR)
    if not (at.isascii() and at.isdigit() and len(at) < 20 and separator and process and id_):
        raise ValueError("Must be what 'next' was in the answer before")
    return int(at), process, id_


_PARSERS: dict[str, Callable[[str], Any]] = {
    "kind": _one_of(KINDS),
    "state": _one_of(STATES),
    "model": _text,
    "tenant": _text,
    "key": _text,
    "agent": _text,
    "since": _seconds,
    "slow_than": _seconds,
    "limit": _limit,
    "after": _after,
}

_SECONDS: Mapping[str, Any] = {"type": "number", "minimum": 0}
_SHORT: Mapping[str, Any] = {"type": "string", "minLength": 1, "maxLength": TEXT_CHARS}
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "kind": {"type": "string", "enum": list(KINDS), "default": "recent"},
    "state": {"type": "string", "enum": list(STATES)},
    **dict.fromkeys(("model", "tenant", "key", "agent"), _SHORT),
    **dict.fromkeys(("since", "slow_than"), _SECONDS),
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST, "default": USUAL},
    "after": {"type": "string"},
}
"""What each parameter takes, for ``/openapi.json``."""
