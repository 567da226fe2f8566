"""Fleets as people write them: ``4*h100,4*l4@40ms``."""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gateway.simulate.devices import device_named
from gateway.simulate.errors import BadSpec

DEFAULT_RTT_S = 0.002
"""Round trip between gateway and agent where nothing is said: one data centre."""

MAX_DEVICES = 100_000
MAX_RTT_S = 10.0
_GROUP = re.compile(r"\s*(?:(\d{1,9})\s*\*)?\s*([a-z][a-z0-9]*)\s*(?:@\s*(\d+(?:\.\d+)?)\s*ms)?\s*")


@dataclass(frozen=True, slots=True)
class Group:
    """``count`` devices of one class, each a round trip of ``rtt_s`` from the gateway."""

    count: int
    card: str
    rtt_s: float = DEFAULT_RTT_S

    def __str__(self) -> str:
        far = "" if self.rtt_s == DEFAULT_RTT_S else f"@{self.rtt_s * 1000:g}ms"
        return f"{self.count}*{self.card}{far}"


Fleet = tuple[Group, ...]


def fleet_of(text: str, own: Collection[str] = ()) -> Fleet:
    """Reads ``COUNT*CLASS[@RTTms][,…]``; ``own`` are further names of classes. Raises BadSpec."""
    groups = tuple(_group(part, own) for part in text.split(","))
    if devices(groups) > MAX_DEVICES:
        raise BadSpec("--fleet", f"{devices(groups):,} devices are more than {MAX_DEVICES:,}")
    return groups


def devices(fleet: Sequence[Group]) -> int:
    return sum(group.count for group in fleet)


def written(fleet: Sequence[Group]) -> str:
    """As :func:`fleet_of` reads it."""
    return ",".join(map(str, fleet))


def scaled(fleet: Fleet, times: int) -> Fleet:
    """So many of the smallest fleet that is composed in the same way."""
    unit = math.gcd(*(group.count for group in fleet))
    return tuple(replace(group, count=group.count // unit * times) for group in fleet)


def _group(part: str, own: Collection[str]) -> Group:
    match = _GROUP.fullmatch(part)
    if match is None:
        raise BadSpec(
            "--fleet", f"{part.strip()!r} is not COUNT*CLASS or COUNT*CLASS@RTTms, as 4*h100 or 2*l4@40ms"
        )
    count, card, rtt_ms = int(match[1] or 1), match[2], match[3]
    if card not in own:
        device_named(card)
    if not count:
        raise BadSpec("--fleet", f"{part.strip()!r} has no device")
    rtt_s = DEFAULT_RTT_S if rtt_ms is None else float(rtt_ms) / 1000
    if rtt_s > MAX_RTT_S:
        raise BadSpec("--fleet", f"a round trip of {rtt_s:g} s is more than {MAX_RTT_S:g} s")
    return Group(count, card, rtt_s)
