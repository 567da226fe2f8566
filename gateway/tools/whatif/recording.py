"""Facts of a stretch of time, with the fleet that they are replayed on; and files of them.

A file is JSON lines: a header, then a line for each request in the order of their arrival.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from gateway.scheduling import POLICIES
from gateway.tools.simulate.inputs import BadSpec, mistake_in
from gateway.tools.whatif.facts import ReplayFact, as_row, without_tenants
from gateway.tools.whatif.fleet import FleetNow, read_fleet

FORMAT = "trunkline_facts"
VERSION = 1
_MOST_LINE_BYTES = 1 << 20
_MOST_HEADER_BYTES = 1 << 26
_FACT = TypeAdapter(ReplayFact)
_LATEST_S = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


class BadFacts(BadSpec):
    """A file of facts that cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__("--facts", message)


@dataclass(frozen=True, slots=True)
class ReplayRecording:
    """What is known of the requests of a time."""

    facts: Sequence[ReplayFact]
    """In the order of their arrival."""
    from_s: float
    until_s: float
    """What is replayed, in seconds since 1970."""
    seen: int
    """Requests that ended in the time that was asked for, replayed or not."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Of the requests in the time that is replayed, why they are not, by code."""
    source: str = ""
    """Where the facts are from."""

    @property
    def span_s(self) -> float:
        return self.until_s - self.from_s


def header_of(recording: ReplayRecording, fleet: dict[str, Any]) -> dict[str, Any]:
    """The first line of a file."""
    facts = {name: getattr(recording, name) for name in ("from_s", "until_s", "seen", "left_out", "source")}
    return {FORMAT: VERSION, **facts, "fleet": fleet}


def export(recording: ReplayRecording, fleet: dict[str, Any]) -> dict[str, Any]:
    """What ``GET /admin/whatif/facts`` answers: a header and rows, tenants as numbers."""
    weights = fleet["queue"]["weights"]
    facts, hidden = without_tenants(recording.facts, weights)
    fleet = {**fleet, "queue": {**fleet["queue"], "weights": hidden}}
    return {"header": header_of(recording, fleet), "facts": [as_row(fact) for fact in facts]}


def write_facts(path: Path, exported: dict[str, Any]) -> None:
    """Raises OSError."""
    with path.open("wb") as file:
        for each in itertools.chain((exported["header"],), exported["facts"]):
            file.write(orjson.dumps(each) + b"\n")


def read_facts(path: Path) -> tuple[ReplayRecording, FleetNow]:
    """Raises BadFacts."""
    try:
        with path.open("rb") as file:
            header = _object(path, 1, file.readline(_MOST_HEADER_BYTES))
            if header.get(FORMAT) != VERSION:
                raise BadFacts(f"{path.name} is no file of facts: trunkline whatif --export makes one")
            facts = []
            for number in itertools.count(2):
                line = file.readline(_MOST_LINE_BYTES)
                if not line:
                    break
                facts.append(_fact(path, number, line))
    except OSError as error:
        raise BadFacts(f"{path}: {error.strerror or 'it cannot be read'}") from None
    try:
        from_s, until_s = float(header["from_s"]), float(header["until_s"])
        if not 0 <= from_s <= until_s <= _LATEST_S:
            raise ValueError("no time")
        left_out = Counter({str(code): int(count) for code, count in header["left_out"].items()})
        recording = ReplayRecording(facts, from_s, until_s, int(header["seen"]), dict(left_out), path.name)
        fleet = read_fleet(header["fleet"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadFacts(f"{path.name}, line 1: it is no header of such a file") from None
    for policy in (fleet.policy, *fleet.policies.values()):
        if policy not in POLICIES:
            raise BadFacts(
                f"{path.name}, line 1: no policy is called {policy!r} in this version of trunkline"
            )
    return recording, fleet


def merged(recordings: Iterable[ReplayRecording]) -> ReplayRecording:
    """Facts of several gateways, which share a fleet, as one. Tenants of one file are none of another's."""
    known = list(recordings)
    if len(known) == 1:
        return known[0]
    facts = [
        replace(fact, tenant=f"{number}/{fact.tenant}")
        for number, each in enumerate(known, 1)
        for fact in each.facts
    ]
    facts.sort(key=lambda fact: fact.at_s)
    left_out = sum((Counter(each.left_out) for each in known), Counter[str]())
    return ReplayRecording(
        facts,
        min(each.from_s for each in known),
        max(each.until_s for each in known),
        sum(each.seen for each in known),
        dict(left_out),
        ", ".join(each.source for each in known),
    )


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise BadFacts(f"{path.name}, line {number}: it is no JSON object")
    return found


def _fact(path: Path, number: int, line: bytes) -> ReplayFact:
    try:
        return _FACT.validate_json(line)
    except ValidationError as error:
        raise BadFacts(f"{path.name}, line {number}: {mistake_in(error)}") from None
