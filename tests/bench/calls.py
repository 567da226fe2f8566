"""How many calls a unary request and a streamed token take at the gateway and at the agent, by stage.

``python -m tests.bench calls``. Real processes, real sockets, one connection, everything on that is on by
default. Calls are counted in the processes themselves (:mod:`tests.support.call_counter`), so the figures do
not depend on how fast the machine is. Nor do they depend on what else runs on it: a token is sent when the
one before it has arrived, and what comes with time is left out.
"""

import http.client
import json
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.tools.quickstart.processes import Child
from shared.process.ports import free_port
from shared.protocol.limits import ACK_MESSAGES
from shared.speedups import NATIVE
from shared.tunnel.accept import NEW_S
from tests.bench.site import MODEL
from tests.support.call_counter import LOOP
from tests.support.processes import START_S, Gateway, House

WARM = 30
REQUESTS = 25
"""Of one round."""

ROUNDS, MOST_ROUNDS = 12, 120
"""Of each function the round with the fewest calls counts: what recurs with time comes into some of them.
While that is more than the budget there are more rounds, and shorter ones: on a busy machine, where so many
requests take seconds, what recurs comes into each of the long ones. What is really called more often is in
all of them."""

FEW_REQUESTS = 4
"""Of one of the shorter rounds."""

TOKENS = ACK_MESSAGES
"""Of one streamed answer. Each is sent when the one before it has arrived, so it is a message of its own, and
so many have one ACK. An answer is over before what comes every second has come into each round."""

SIDES = ("gateway", "agent")
UNARY, STREAMED, TOKEN = "a unary request", "a streamed request of one token", "a streamed token"


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
    (UNARY, "gateway"): Calls(318, 241),
    (UNARY, "agent"): Calls(110.5, 100.5),
    (STREAMED, "gateway"): Calls(436, 296),
    (STREAMED, "agent"): Calls(172, 196),
    (TOKEN, "gateway"): Calls(15, 12.6),
    (TOKEN, "agent"): Calls(11.1, 18.6),
}
"""What each may take: what it takes now, and a fortieth (of a token a twentieth) for what recurs with time
and comes into each round on a machine that is busy. Lower them with what it takes. Those of a token have a
part of its request's in them. The goal for a unary request is 450 + 400 at the gateway and 170 + 180 at the
agent."""

WITHOUT_NATIVE = {
    (UNARY, "gateway"): Calls(17, 75),
    (UNARY, "agent"): Calls(12, 58),
    (STREAMED, "gateway"): Calls(28, 112),
    (STREAMED, "agent"): Calls(32, 121),
    (TOKEN, "gateway"): Calls(6.6, 32),
    (TOKEN, "agent"): Calls(6.4, 24.2),
}
"""What each may take besides where functions run in Python that are native otherwise
(:mod:`shared.speedups`)."""

GROUP_BUDGETS = {"log and metrics": 8.5, "scheduler and admission": 77, "tunnel": 50.5, "HTTP": 57.5}
"""Python calls of the groups. They take 7.8, 75, 49 and 56, and up to a fortieth more where something recurs
meanwhile, the first up to a twentieth, for it has most of what recurs; the goals are 25, 90, 80 and 60."""


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
        if not NATIVE:
            more = WITHOUT_NATIVE[self.work, self.side]
            most = Calls(most.python + more.python, most.c + more.c)
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
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        engine = self.engine.url.removeprefix("http://")
        self._engine_connection = http.client.HTTPConnection(engine, timeout=30)

    def _start(self, side: str, *arguments: str) -> Child:
        counted = (str(self._files[side]), side, *arguments)
        return self._house.children.start(side, "tests.support.call_counter", *counted)

    def __enter__(self) -> "CallSite":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._engine_connection.close()

    def ask(self, requests: int) -> None:
        """So many requests, one after the other, and their whole answers."""
        for _ in range(requests):
            self._post(max_tokens=2).read()

    def stream_one(self, requests: int) -> None:
        """So many streamed answers of one token, one after the other."""
        for _ in range(requests):
            self.stream(1)

    def stream(self, tokens: int) -> None:
        """A streamed answer, token by token."""
        response = self._post(max_tokens=tokens, stream=True, script={"stepped": True})
        for index in range(tokens):
            while b'"%d:' % index not in (line := response.readline()):
                assert line, f"the answer ended before token {index}"
            self._engine_connection.request("POST", "/_step")
            self._engine_connection.getresponse().read()
        assert response.read().endswith(b"data: [DONE]\n\n")

    def _post(self, **body: object) -> http.client.HTTPResponse:
        messages = [{"role": "user", "content": "x" * 900}]
        whole = json.dumps({"model": MODEL, "messages": messages, **body}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self.key}\r\ncontent-length: {len(whole)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + whole)  # together, or the gateway may read twice
        response = http.client.HTTPResponse(self._socket, method="POST")
        response.begin()
        assert response.status == 200, response.read()
        return response

    def count(self, work: str, side: str, units: "Units", rounds: int = ROUNDS) -> CallTable:
        """The fewest calls of each function that ``side`` makes for one of the units, in ``rounds`` or more,
        which are shorter where there are more."""
        fewest = self._count(side, units.do, units.many)
        for done in range(1, MOST_ROUNDS):
            if done >= rounds and not _table(work, side, fewest).over_budget():
                break
            counted = self._count(side, units.do, units.many if done < rounds else units.few)
            fewest = {name: min(calls, counted.get(name, 0)) for name, calls in fewest.items()}
        return _table(work, side, fewest)

    def _count(self, side: str, do: Callable[[int], object], units: int) -> dict[str, float]:
        """The calls of each function for one of so many units."""
        file, child = self._files[side], self._children[side]
        file.unlink(missing_ok=True)
        child.signal(signal.SIGUSR1)
        do(units)
        child.signal(signal.SIGUSR1)
        self._house.children.wait_until(file.exists, "the calls are counted", START_S)
        functions: dict[str, int] = json.loads(file.read_text())["functions"]
        return {name: calls / units for name, calls in functions.items()}


@dataclass(frozen=True, slots=True)
class Units:
    """What is counted: so many at once, of which one takes so many calls in the mean."""

    do: Callable[[int], object]
    many: int
    few: int
    """Of a round that is to be short."""


def _table(work: str, side: str, functions: Mapping[str, float]) -> CallTable:
    """Of the calls of each function for one unit, by stage."""
    stages: dict[str, Calls] = {}
    for name, calls in functions.items():
        stage, _, function = name.partition(" ")
        if stage == "event":  # the one of two words
            stage, function = LOOP, function.removeprefix("loop ")
        so_far = stages.get(stage, Calls(0, 0))
        if function.startswith("("):
            stages[stage] = Calls(so_far.python, so_far.c + calls)
        else:
            stages[stage] = Calls(so_far.python + calls, so_far.c)
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


def run(directory: Path, rounds: int = ROUNDS) -> CallTables:
    """Of each kind of work at each side."""
    with House(directory) as house, CallSite(house) as site:
        time.sleep(NEW_S)  # an agent's input waits for turns so long
        site.ask(WARM)
        works = {
            UNARY: Units(site.ask, REQUESTS, FEW_REQUESTS),
            STREAMED: Units(site.stream_one, REQUESTS, FEW_REQUESTS),
            TOKEN: Units(site.stream, TOKENS, TOKENS),  # of a shorter answer the request itself would be more
        }
        tables = [site.count(work, side, units, rounds) for work, units in works.items() for side in SIDES]
    return CallTables(tables)
