"""Results as rows of text, as goals met or missed, and as JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.peers.known import DIRECT, OURS
from tests.bench.peers.run import Figures, Results, fell_behind

_NONE = "–"
_BEHIND = "*"
BEHIND = f"{_BEHIND} fell behind the pace: its tokens wait and then cost less, for they come in crowds"
APART = "Agents, and clients of SSH, ran on another core than what took the requests"


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a workload."""

    title: str
    workload: str
    value: Callable[[Figures], float]
    added: bool = False
    """Told is how much more it is than with nobody in between."""
    role_value: Callable[[Figures, str], float] | None = None
    """The same of one role of a peer, where it can be told apart."""

    def sound(self, results: Results, peer: str, role: str | None = None) -> float | None:
        """None also when the peer fell behind, for then it is no cost that others can be held against."""
        figures = results.of(peer, self.workload)
        return None if figures is None or fell_behind(figures) else self.of(results, peer, role)

    def told(self, results: Results, peer: str, role: str | None = None) -> str:
        """As it stands in a table."""
        value = self.of(results, peer, role)
        figures = results.of(peer, self.workload)
        return number(value) + (_BEHIND if value is not None and figures and fell_behind(figures) else "")

    def of(self, results: Results, peer: str, role: str | None = None) -> float | None:
        figures = results.of(peer, self.workload)
        bare = results.of(DIRECT, self.workload) if self.added else {}
        if figures is None or bare is None or (role is not None and self.role_value is None):
            return None
        try:
            if role is not None and self.role_value is not None:
                return self.role_value(figures, role)
            return self.value(figures) - (self.value(bare) if self.added else 0.0)
        except (KeyError, ZeroDivisionError):
            return None


def _cpu(title: str, workload: str) -> Column:
    return Column(
        title,
        workload,
        lambda seen: float(seen["cpu_us_total"]),
        role_value=lambda seen, role: float(seen["cpu_us"][role]),
    )


def _per_core(title: str, workload: str) -> Column:
    """MB that a second of CPU moves."""
    return Column(
        title,
        workload,
        lambda seen: 1e9 / float(seen["cpu_us_total"]),
        role_value=lambda seen, role: 1e9 / float(seen["cpu_us"][role]),
    )


UNARY_CPU = _cpu("CPU µs/request, ×64", "unary")
PACED_CPU = _cpu("CPU µs/token, paced", "paced")
STEP_CPU = _cpu("CPU µs/token, step", "step")
ADDED = Column("added p50 µs, ×1", "unary1", lambda seen: float(seen["latency_us"]["p50"]), added=True)
FIRST_P50 = Column("TTFT p50 ms", "paced", lambda seen: float(seen["first_token_us"]["p50"]) / 1e3)
FIRST_P99 = Column("TTFT p99 ms", "paced", lambda seen: float(seen["first_token_us"]["p99"]) / 1e3)
ONE_WAY = Column("one-way p99 ms", "paced", lambda seen: float(seen["one_way_us"]["p99"]) / 1e3)
SATURATED = Column("saturated k tokens/s", "saturated", lambda seen: float(seen["tokens_per_s"]) / 1e3)
DOWN = _per_core("down MB/s per core", "down")
UP = _per_core("up MB/s per core", "up")
COLUMNS = (
    UNARY_CPU,
    Column("requests/s, ×64", "unary", lambda seen: float(seen["per_s"])),
    ADDED,
    PACED_CPU,
    FIRST_P50,
    FIRST_P99,
    ONE_WAY,
    STEP_CPU,
    SATURATED,
    DOWN,
    UP,
    Column(
        "RSS MB, paced",
        "paced",
        lambda seen: float(sum(seen["rss_mb"].values())),
        role_value=lambda seen, role: float(seen["rss_mb"][role]),
    ),
)


def number(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return _NONE
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def rows(results: Results) -> list[list[str]]:
    """Titles, then each peer, ours also by its two halves."""
    columns = [
        column for column in COLUMNS if any(each.name == column.workload for each in results.workloads)
    ]
    table = [["peer", *(column.title for column in columns)]]
    for peer in results.peers():
        table.append([peer, *(column.told(results, peer) for column in columns)])
        if peer == OURS:
            for role in ("gateway", "agent"):
                table.append([f"its {role}", *(column.told(results, peer, role) for column in columns)])
    return table


def as_text(table: Sequence[Sequence[str]]) -> str:
    """Aligned, the titles in as many lines as they have words."""
    heads = [title.split(" ") for title in table[0]]
    tall = max(map(len, heads))
    lines = [[head[line] if line < len(head) else "" for head in heads] for line in range(tall)]
    widths = [max(len(row[at]) for row in (*lines, *table[1:])) for at in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (*lines, *table[1:])
    )


@dataclass(frozen=True, slots=True)
class Goal:
    """One of what the data path is to reach: ``bound`` from the others, against it ours."""

    text: str
    measured: float | None
    bound: float | None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """None when it was not measured, or somebody fell behind whose cost it is about."""
        if self.measured is None or self.bound is None:
            return None
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def __str__(self) -> str:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        if self.met is None:
            return f"{self.text}: {verdict}"
        sign = "≥" if self.at_least else "≤"
        return f"{self.text}: {number(self.measured)} {sign} {number(self.bound)}? {verdict}"


def goals(results: Results) -> list[Goal]:
    """Of the whole product, measured in this run against peers in this run."""

    def least(column: Column, *peers: str) -> float | None:
        values = [value for peer in peers if (value := column.sound(results, peer)) is not None]
        return min(values, default=None)

    def share(of: float, value: float | None) -> float | None:
        return None if value is None else of * value

    tunnels = [peer for peer in results.peers() if "ssh" in peer]
    together, alone = "gateway and agent", "gateway alone"
    ours = {column: column.sound(results, OURS) for column in (UNARY_CPU, PACED_CPU, STEP_CPU, SATURATED)}
    paced_gateway, step_gateway = (each.sound(results, OURS, "gateway") for each in (PACED_CPU, STEP_CPU))
    unary, router = ours[UNARY_CPU], least(UNARY_CPU, "vllm-router")
    return [
        Goal(f"paced, {alone}, 0.7 × nginx", paced_gateway, share(0.7, least(PACED_CPU, "nginx"))),
        Goal(
            f"paced, {together}, 0.55 × the cheapest tunnel",
            ours[PACED_CPU],
            share(0.55, least(PACED_CPU, *tunnels)),
        ),
        Goal("paced, one way, p99, ms", ONE_WAY.of(results, OURS), 3.0),
        Goal(f"step, {alone}, 0.7 × nginx", step_gateway, share(0.7, least(STEP_CPU, "nginx"))),
        Goal(
            f"step, {together}, 0.55 × the cheapest tunnel",
            ours[STEP_CPU],
            share(0.55, least(STEP_CPU, *tunnels)),
        ),
        Goal(
            "saturated, k tokens/s, 1.5 × nginx",
            ours[SATURATED],
            share(1.5, least(SATURATED, "nginx")),
            at_least=True,
        ),
        Goal(f"unary, {together}, 4 × the vLLM router", unary, share(4.0, router)),
        Goal(f"unary, {together}, 2.5 × the vLLM router (stretch)", unary, share(2.5, router)),
        Goal(f"unary, {together}, a fiftieth of LiteLLM", unary, share(0.02, least(UNARY_CPU, "litellm"))),
        Goal("unary, latency added, one connection, p50, µs", ADDED.of(results, OURS), 500.0),
        Goal("a large response, MB/s per core", DOWN.of(results, OURS), 400.0, at_least=True),
        Goal("a large request, MB/s per core", UP.of(results, OURS), 400.0, at_least=True),
    ]


def as_json(results: Results) -> str:
    """Everything: the machine, the settings, each sample, the medians, the goals."""
    value: dict[str, Any] = {
        "when": results.when,
        "machine": results.machine,
        "rounds": results.rounds,
        "scale": asdict(results.scale),
        "workloads": [asdict(each) for each in results.workloads],
        "versions": results.versions,
        "skipped": results.skipped,
        "failed": results.failed,
        "medians": {
            peer: {each.name: results.of(peer, each.name) for each in results.workloads}
            for peer in results.peers()
        },
        "goals": [asdict(goal) | {"met": goal.met} for goal in goals(results)],
        "others_cores": results.others_cores(),
        "gateway_apart": results.gateway_apart,
        "samples": [
            {"round": number, "peer": peer, "workload": workload, "figures": figures}
            for number, peer, workload, figures in results.samples
        ],
    }
    return json.dumps(value, indent=1, ensure_ascii=False)


def told(results: Results) -> str:
    """For a terminal."""
    lines = [as_text(rows(results)), ""]
    lines += [f"{each.name:10} {each.about}" for each in results.workloads]
    lines += ["", *(str(goal) for goal in goals(results) if goal.met is not None)]
    lines += [f"not run: {peer}: {reason}" for peer, reason in results.skipped.items()]
    lines += [f"failed: {each}" for each in results.failed]
    lines += [APART] if results.gateway_apart else []
    lines += [BEHIND, f"other programs kept {results.others_cores():.2f} cores busy meanwhile"]
    return "\n".join([*lines, f"{results.rounds} rounds, {results.when}"])
