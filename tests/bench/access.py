"""What access control costs a whole gateway: its CPU for a short request, by what the key and tenant may do.

One gateway, one agent and one compiled engine; the keys take turns, so that what else the machine does meets
all of them.
"""

import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.domain.quotas import Budgets, Rates
from gateway.domain.scopes import scopes_of
from gateway.storage import Store
from tests.bench import crowd
from tests.bench.peers.workloads import MODEL
from tests.support.processes import House

CONNECTIONS = 16
_SLOTS = 256
_MUCH = 10**11
RATES = Rates(_MUCH, _MUCH, 10_000)
BUDGETS = Budgets(_MUCH, _MUCH, 1e11, 1e11, 1e11, 1e11)
SCOPES = scopes_of({"models": [MODEL, "other-*"], "routes": ["chat"]})


@dataclass(frozen=True, slots=True)
class Cost:
    """One kind of key: medians of its rounds."""

    key: str
    requests_per_s: float
    cpu_us: float
    """Of the gateway, for a request."""
    requests: int
    failed: int

    def __str__(self) -> str:
        return (
            f"{self.key:<58} {self.requests_per_s:8,.0f}/s  gateway {self.cpu_us:6.0f} µs a request, "
            f"{self.requests:,} answered, {self.failed} not"
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one run."""

    keys: list[Cost]

    def __str__(self) -> str:
        return "\n".join(map(str, self.keys))

    def to_json(self) -> str:
        return json.dumps([asdict(each) for each in self.keys], indent=1)


def run(house: House, rounds: int, seconds: float) -> Costs:
    """So many rounds, in each of them every key for so long. The caller asked :func:`tools.missing`."""
    gateway = crowd.start_gateway(house)
    keys = _keys(gateway.state)
    site = crowd.start_agents(house, gateway, 1, _SLOTS, next(iter(keys.values())))
    pace = ("-c", str(CONNECTIONS), "-w", "0.3", "-d", f"{seconds:g}")
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in keys}
    for _ in range(rounds):
        for name, key in keys.items():
            seen[name].append(site.ask("unary", *pace, key=key))
    return Costs([_cost(name, each, gateway.child.pid) for name, each in seen.items()])


def _cost(name: str, rounds: list[dict[str, Any]], pid: int) -> Cost:
    answered = [int(each["right"]) for each in rounds]
    return Cost(
        name,
        statistics.median(each["right"] / each["seconds"] for each in rounds),
        statistics.median(crowd.cpu_us(each, [pid], each["right"]) for each in rounds),
        sum(answered),
        sum(sum(each["errors"].values()) for each in rounds),
    )


def _keys(state: Path) -> dict[str, str]:
    """By what is told of them."""
    wall_s = time.time()
    with Store.open(state) as store:
        store.limits.tenants.change(
            "limited", {**asdict(RATES), **asdict(BUDGETS), "queue_share": 0.9}, wall_s
        )
        store.limits.prices.set(MODEL, 1.0, 2.0, 0.001, wall_s)
        return {
            "no limits": store.keys.create("plain", "free", wall_s),
            "its rates": store.keys.create("rates", "free", wall_s, rates=RATES),
            "its rates and scopes, its tenant's rates, six budgets": store.keys.create(
                "all", "limited", wall_s, rates=RATES, scopes=SCOPES
            ),
        }
