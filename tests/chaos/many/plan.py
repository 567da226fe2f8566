"""Which fault strikes what and when: drawn from the seed alone."""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from random import Random


class Strike(StrEnum):
    """What can go wrong between several gateways. The values are what reports call it."""

    GATEWAY_KILL = "gateway: killed and restarted"
    GATEWAY_PAUSE = "gateway: paused"
    WORKER_KILL = "gateway: a worker killed"
    WORKER_PAUSE = "gateway: a worker paused"
    WORKERS_ROLL = "gateway: workers replaced one by one"
    STORE_KILL = "PostgreSQL: killed and restarted"
    STORE_PAUSE = "PostgreSQL: paused"
    SHARED_KILL = "Redis: killed and restarted empty"
    SHARED_PAUSE = "Redis: paused"
    SHARED_FLUSH = "Redis: emptied"
    PART_STORE = "parted: gateway and PostgreSQL"
    PART_SHARED = "parted: gateway and Redis"
    PART_AGENTS = "parted: agents and gateway"
    PART_AGENT = "parted: one agent and gateway"
    PART_CLIENTS = "parted: clients and gateway"


OF_GATEWAYS = tuple(kind for kind in Strike if "gateway" in kind)
"""They strike one gateway or one of its paths; the others strike what all gateways have together."""

OF_WORKERS = (Strike.WORKER_KILL, Strike.WORKER_PAUSE, Strike.WORKERS_ROLL)
KILLS = (Strike.GATEWAY_KILL, Strike.WORKER_KILL)
"""After those, clients of that gateway may have lost their requests."""

QUIET_S = 1.5
"""Without a fault, at the beginning."""


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault. ``at_s`` counts from the start of the run."""

    at_s: float
    kind: Strike
    gateway: int
    """Whose; -1 for what all have together."""
    lasts_s: float
    member: int = 0
    """Which agent, or which worker counted from the first one; more than there are begin anew."""


@dataclass(frozen=True, slots=True)
class ManyPlan:
    """What a run is to be."""

    seed: int
    gateways: int = 3
    seconds: float = 60.0
    every_s: float = 2.5
    """Between the beginnings of two faults, on average."""
    longest_s: float = 5.0
    rate_per_s: float = 12.0
    kinds: tuple[Strike, ...] = tuple(Strike)
    """Those of workers only where there are some."""
    workers: int = 1
    """Of each gateway."""

    def strikes(self) -> tuple[Struck, ...]:
        """Every kind in turn, each turn in another order. One gateway is never away while another one is, for
        what was lost with one is not to be lost with the other."""
        random, found, at_s = Random(f"{self.seed}/many"), list[Struck](), QUIET_S
        every = [kind for kind in self.kinds if self.workers > 1 or kind not in OF_WORKERS]
        kinds: list[Strike] = []
        busy_until_s: dict[str, float] = {}
        while at_s < self.seconds:
            kinds = kinds or random.sample(every, len(every))
            kind = kinds.pop()
            lasts_s = round(random.uniform(0.2, 1.0) * self.longest_s, 2)
            gateway = random.randrange(self.gateways) if kind in OF_GATEWAYS else -1
            place = _place(kind, gateway)
            begins_s = max(at_s, busy_until_s.get(place, 0.0))
            if begins_s < self.seconds:
                member = random.randrange(_MEMBERS)
                found.append(Struck(round(begins_s, 3), kind, gateway, lasts_s, member))
                busy_until_s[place] = begins_s + lasts_s + (_RESTART_S if "killed and" in kind else 0.5)
            at_s += random.uniform(0.5, 1.5) * self.every_s
        return tuple(sorted(found, key=lambda each: each.at_s))

    @property
    def digest(self) -> str:
        """The same for the same faults at the same times."""
        text = json.dumps([asdict(each) for each in self.strikes()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


_MEMBERS = 64
_RESTART_S = 6.0
"""For a process that starts, before it is struck again."""


def _place(kind: Strike, gateway: int) -> str:
    """What of a run is struck by one fault at a time."""
    if kind.startswith("parted:"):
        return f"{kind} {gateway}"
    return kind.partition(":")[0]
