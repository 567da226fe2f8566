"""The tables of deployments, and of hosts with their GPUs. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.tools.top.columns import Column
from gateway.tools.top.live_fleet import LiveFleet
from gateway.tools.top.quantities import bar, count, gibibytes, percent, seconds
from gateway.tools.top.view import (
    FleetRow,
    View,
    fact_number,
    number_column,
    slots_text,
    slots_used,
    text_column,
    tone_of_share,
)

Json = dict[str, Any]

HOT_C = 85.0
"""From this temperature on a GPU is shown as hot."""

# --- Deployments ---


def deployment_state(row: FleetRow) -> str:
    """What it can do now, in a word or two."""
    facts = row.facts
    agent = row.fleet.agents.get(str(facts.get("agent")), {})
    status = str(facts.get("status", ""))
    if status == "loading" and (progress := facts.get("load_progress")) is not None:
        return f"loading {percent(progress)}"
    if status != "loaded":
        return status
    if agent.get("draining"):
        return "draining"
    if agent.get("status") == "suspended":
        return "suspended"
    if not facts.get("health", 1):
        return "circuit open"
    return "loaded" if facts.get("usable", True) else "no work"


def _tone_of_state(row: FleetRow) -> str:
    state = deployment_state(row)
    if state in ("failed", "circuit open", "suspended"):
        return "bad"
    return "good" if state == "loaded" else "dim" if state == "loadable" else "warn"


def _tone_of_heat(row: FleetRow) -> str:
    return "bad" if (_temperature(row) or 0.0) >= HOT_C else ""


def _temperature(row: FleetRow) -> float | None:
    return row.facts.get("temperature_c")


def _memory(row: FleetRow) -> tuple[float, float] | None:
    """Used and total bytes of the GPUs."""
    gpus = row.fleet.gpus_of(row.facts)
    total = sum(each.get("memory_total_bytes", 0) for each in gpus)
    return (sum(each.get("memory_used_bytes", 0) for each in gpus), total) if total else None


def _memory_share(row: FleetRow) -> float | None:
    memory = _memory(row)
    return None if memory is None else memory[0] / memory[1]


def _memory_text(row: FleetRow) -> str:
    memory = _memory(row)
    return "" if memory is None else f"{gibibytes(memory[0])}/{gibibytes(memory[1])}G"


def _power(row: FleetRow) -> float | None:
    watts = [each["power_w"] for each in row.fleet.gpus_of(row.facts) if "power_w" in each]
    return sum(watts) if watts else None


def _tokens(row: FleetRow) -> float:
    return row.fleet.rates.of(row.key)[1]


def _deployment_rows(fleet: LiveFleet, kind: str) -> Iterator[FleetRow]:
    for key, facts in fleet.deployments.items():
        yield FleetRow(key, facts, fleet)


_gpu_use = fact_number("utilisation")

DEPLOYMENTS = View(
    "fleet",
    "Fleet",
    (
        text_column("HOST", "agent", 10, "the agent", need=9, flexible=2),
        text_column("MODEL", "model", 16, need=8, flexible=3),
        text_column("VERSION", "version", 8, need=0),
        text_column("ENGINE", "kind", 7, "the kind of engine", need=2),
        Column(
            "STATE",
            9,
            deployment_state,
            deployment_state,
            "circuit open: it fails too often, and gets nothing for now",
            need=8,
            tone=_tone_of_state,
        ),
        Column(
            "SLOTS",
            7,
            slots_text,
            slots_used,
            "in use by this gateway, of those granted; sorts by the share",
            right=True,
            need=8,
            descending=True,
            tone=tone_of_share(slots_used),
        ),
        number_column(
            "QUEUE", 5, fact_number("waiting"), count, "requests that wait inside the engine", need=5
        ),
        number_column(
            "TOK/S", 6, _tokens, count, "tokens of answers a second, of those that ended in 30 s", need=7
        ),
        number_column(
            "KV", 4, fact_number("kv_use"), percent, "share of its memory for context in use", need=3
        ),
        number_column(
            "GPU", 4, _gpu_use, percent, "mean use of its GPUs", need=7, tone=tone_of_share(_gpu_use)
        ),
        Column(
            "USE",
            8,
            lambda row: bar(_gpu_use(row), 8),
            _gpu_use,
            "the same as a bar",
            tone=lambda row: "bar",
            need=1,
            descending=True,
        ),
        Column(
            "MEMORY",
            9,
            _memory_text,
            _memory_share,
            "of its GPUs: used of total GiB; sorts by the share",
            right=True,
            need=4,
            descending=True,
            tone=tone_of_share(_memory_share),
        ),
        number_column(
            "TEMP", 4, _temperature, lambda c: f"{c:.0f}C", "of its hottest GPU", need=6, tone=_tone_of_heat
        ),
        number_column("POWER", 6, _power, lambda w: f"{w:.0f}W", "of its GPUs", need=4),
        text_column("WHY", "reason", 12, "why it does not serve, in the agent's words", need=0, flexible=3),
    ),
    _deployment_rows,
    "HOST",
    "No agent is connected. On the gateway's host, `trunkline token create` prints a join token, with which "
    "`trunkline agent` connects a GPU host.",
)

# --- Hosts ---


def _host_rows(fleet: LiveFleet, kind: str) -> Iterator[FleetRow]:
    """A row for each GPU, and one for an agent without."""
    for name, facts in fleet.agents.items():
        gpus: Mapping[str, Json] = facts.get("gpus", {})
        for index, gpu in gpus.items():
            yield FleetRow(f"{name}/{index}", facts, fleet, (name, index, gpu))
        if not gpus:
            yield FleetRow(name, facts, fleet, (name, "", {}))


def _of_gpu(name: str) -> Callable[[FleetRow], float | None]:
    return lambda row: row.more[2].get(name)


def _host_state(row: FleetRow) -> str:
    if row.facts.get("draining"):
        return "away, draining" if row.facts.get("status") == "away" else "draining"
    return str(row.facts.get("status", ""))


def _tone_of_host(row: FleetRow) -> str:
    state = _host_state(row)
    if state in ("failed", "suspended"):
        return "bad"
    return "good" if state in ("ready", "busy") else "dim" if state.startswith("away") else "warn"


def _gpu_memory(row: FleetRow) -> float | None:
    total = row.more[2].get("memory_total_bytes")
    return row.more[2].get("memory_used_bytes", 0) / total if total else None


def _gpu_memory_text(row: FleetRow) -> str:
    gpu = row.more[2]
    total = gpu.get("memory_total_bytes")
    return f"{gibibytes(gpu.get('memory_used_bytes', 0))}/{gibibytes(total)}G" if total else ""


def _gpu_heat(row: FleetRow) -> str:
    return "bad" if (_of_gpu("temperature_c")(row) or 0.0) >= HOT_C else ""


HOSTS = View(
    "hosts",
    "Hosts",
    (
        Column("HOST", 12, lambda row: row.more[0], lambda row: row.more[0], need=9, flexible=3),
        Column("STATE", 9, _host_state, _host_state, need=9, tone=_tone_of_host),
        number_column("RUNNING", 7, fact_number("streams"), count, "requests at this host", need=6),
        number_column("RTT", 7, fact_number("rtt_s"), seconds, "round trip of its tunnel", need=5),
        Column("GPU", 3, lambda row: row.more[1], lambda row: float(row.more[1] or -1), "its index", need=8),
        Column(
            "NAME",
            10,
            lambda row: str(row.more[2].get("name", "")),
            lambda row: str(row.more[2].get("name", "")),
            need=2,
            flexible=2,
        ),
        number_column("UTIL", 5, _of_gpu("utilisation"), percent, need=8),
        Column(
            "USE",
            10,
            lambda row: bar(_of_gpu("utilisation")(row), 10),
            _of_gpu("utilisation"),
            "the same as a bar",
            tone=lambda row: "bar",
            need=3,
            descending=True,
        ),
        Column(
            "MEMORY",
            9,
            _gpu_memory_text,
            _gpu_memory,
            "used of total GiB; sorts by the share",
            right=True,
            need=7,
            descending=True,
        ),
        number_column("TEMP", 4, _of_gpu("temperature_c"), lambda c: f"{c:.0f}C", need=7, tone=_gpu_heat),
        number_column("POWER", 6, _of_gpu("power_w"), lambda w: f"{w:.0f}W", need=6),
        text_column("WHY", "reason", 10, "what its agent says", need=0, flexible=2),
    ),
    _host_rows,
    "HOST",
    "No agent has joined. On the gateway's host, `trunkline token create` prints a join token.",
)
