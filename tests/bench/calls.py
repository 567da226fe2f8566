"""How many calls a unary request and a streamed token take at the gateway and at the agent, by stage.

``python -m tests.bench calls``. Real processes, real sockets, one connection, everything on that is on by
default. Calls are counted in the processes themselves (:mod:`tests.support.call_counter`), so the figures do
not depend on how fast the machine is.
"""

import http.client
import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.tools.quickstart.processes import Child, free_port
from shared.tunnel.accept import NEW_S
from tests.bench.site import MODEL
from tests.support.processes import START_S, Gateway, House

WARM = 30
REQUESTS = 25
"""Of one round."""

ROUNDS = 5
"""The one with the fewest calls counts: something that recurs with time may have come into the others."""

TOKENS = 120
"""Of one streamed answer. They come at :data:`TOKENS_PER_S`, so that each is a message of its own."""

TOKENS_PER_S = 200

SIDES = ("gateway", "agent")
UNARY, TOKEN = "a unary request", "a streamed token"


@dataclass(frozen=True, slots=True)
class Calls:
    """Of one side, for one request or one token."""

    python: float
    c: float


GROUPS = {
    "log and metrics": ("gateway/observability",),
    "scheduler and admission": ("gateway/scheduling", "gateway/quota"),
    "tunnel": ("shared/protocol", "shared/tunnel"),
    "HTTP": ("gateway/api",),
}
"""Stages that have a budget together, at the gateway, for a unary request."""

BUDGETS = {
    (UNARY, "gateway"): Calls(450, 390),
    (UNARY, "agent"): Calls(160, 148),
    (TOKEN, "gateway"): Calls(20, 18),
    (TOKEN, "agent"): Calls(20, 30),
}
"""What each may take: what it takes now and a twentieth for what comes and goes with time. Lower them with
what it takes. The goal for a unary request is 450 + 400 at the gateway and 170 + 180 at the agent."""

GROUP_BUDGETS = {"log and metrics": 15, "scheduler and admission": 118, "tunnel": 66, "HTTP": 98}
"""Python calls of the groups; the goals are 25, 90, 80 and 60."""


@dataclass(frozen=True, slots=True)
class CallTable:
    """What one kind of work takes at one side."""

    work: str
    side: str
    stages: Mapping[str, Calls]
    functions: Mapping[str, float]

    @property
    def total(self) -> Calls:
        stages = self.stages.values()
        return Calls(sum(each.python for each in stages), sum(each.c for each in stages))

    @property
    def groups(self) -> Mapping[str, float]:
        """The Python calls of :data:`GROUPS`."""
        none = Calls(0, 0)
        return {
            group: sum(self.stages.get(stage, none).python for stage in stages)
            for group, stages in GROUPS.items()
        }

    def over_budget(self) -> list[str]:
        """What takes more than it may, in words."""
        most, total = BUDGETS[self.work, self.side], self.total
        taken = {"Python calls": (total.python, most.python), "C calls": (total.c, most.c)}
        if (self.work, self.side) == (UNARY, "gateway"):
            taken |= {f"Python calls of {name}": (n, GROUP_BUDGETS[name]) for name, n in self.groups.items()}
        return [
            f"{self.work} at the {self.side}: {found:.1f} {what}, at most {most:g}"
            for what, (found, most) in taken.items()
            if found > most
        ]

    def __str__(self) -> str:
        rows = sorted(self.stages.items(), key=lambda row: -row[1].python)
        lines = [f"{self.work} at the {self.side}", f"{'stage':<26} {'Python':>8} {'C':>8}"]
        lines += [f"{stage:<26} {each.python:8.1f} {each.c:8.1f}" for stage, each in rows]
        return "\n".join([*lines, f"{'together':<26} {self.total.python:8.1f} {self.total.c:8.1f}"])

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        stages = {stage: [each.python, each.c] for stage, each in self.stages.items()}
        return {"work": self.work, "side": self.side, "stages": stages, "functions": dict(self.functions)}


class CallSite:
    """A gateway and an agent that count their calls, and a scripted engine."""

    def __init__(self, house: House) -> None:
        self._house = house
        port, state = free_port(), house.directory / "gateway-state"
        self._files = {side: house.directory / f"{side}-calls.json" for side in SIDES}
        listen = ("--listen", f"127.0.0.1:{port}", "--state", str(state))
        gateway = Gateway(self._start("gateway", *listen), port, state)
        house.children.wait_until(gateway.serving, "the gateway is ready", START_S)
        self.engine = house.engine("--model", MODEL)
        self.key = gateway.key("calls")
        join = ("--gateway", gateway.url, "--join", gateway.token(), "--name", "counted")
        here = ("--engine", self.engine.url, "--state", str(house.directory / "agent-state"))
        agent = self._start("agent", *join, *here, "--slots", "8")
        self._children = {"gateway": gateway.child, "agent": agent}
        house.wait_for_model(gateway, self.key, MODEL)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def _start(self, side: str, *arguments: str) -> Child:
        counted = (str(self._files[side]), side, *arguments)
        return self._house.children.start(side, "tests.support.call_counter", *counted)

    def __enter__(self) -> "CallSite":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, **body: object) -> bytes:
        """One request, its whole answer."""
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        messages = [{"role": "user", "content": "x" * 900}]
        whole = json.dumps({"model": MODEL, "messages": messages, **body})
        self._connection.request("POST", "/v1/chat/completions", whole, headers)
        response = self._connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        return answer

    def count(self, work: str, side: str, units: int, do: Callable[[], object]) -> CallTable:
        """The fewest calls that ``side`` makes meanwhile, for one of so many units."""
        rounds = [self._count(work, side, units, do) for _ in range(ROUNDS)]
        return min(rounds, key=lambda table: table.total.python + table.total.c)

    def _count(self, work: str, side: str, units: int, do: Callable[[], object]) -> CallTable:
        file, child = self._files[side], self._children[side]
        file.unlink(missing_ok=True)
        child.signal(signal.SIGUSR1)
        do()
        child.signal(signal.SIGUSR1)
        self._house.children.wait_until(file.exists, "the calls are counted", START_S)
        counted = json.loads(file.read_text())
        python, c = counted["python"], counted["c"]
        stages = {
            stage: Calls(python.get(stage, 0) / units, c.get(stage, 0) / units) for stage in {*python, *c}
        }
        functions = {name: number / units for name, number in counted["functions"].items()}
        return CallTable(work, side, stages, functions)


@dataclass(frozen=True, slots=True)
class CallTables:
    """All of one run."""

    tables: list[CallTable]

    def __str__(self) -> str:
        over = [line for table in self.tables for line in table.over_budget()]
        return "\n\n".join([*map(str, self.tables), "\n".join(over) or "all within their budgets"])

    def to_json(self) -> str:
        return json.dumps([table.to_mapping() for table in self.tables], indent=1)


def run(directory: Path) -> CallTables:
    """Of each kind of work at each side."""
    with House(directory) as house, CallSite(house) as site:
        time.sleep(NEW_S)  # an agent's input waits for turns so long
        for _ in range(WARM):
            site.ask(max_tokens=2)
        tables = [site.count(UNARY, side, REQUESTS, lambda: _requests(site)) for side in SIDES]
        tables += [site.count(TOKEN, side, TOKENS, lambda: _stream(site)) for side in SIDES]
    return CallTables(tables)


def _requests(site: CallSite) -> None:
    for _ in range(REQUESTS):
        site.ask(max_tokens=2)


def _stream(site: CallSite) -> None:
    site.ask(max_tokens=TOKENS, stream=True, script={"tokens_per_s": TOKENS_PER_S})
