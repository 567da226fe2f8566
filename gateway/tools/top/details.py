"""What is known of one row, as lines. Pure."""

import time
from collections.abc import Iterator
from typing import Any

from gateway.tools.top.fleet_views import deployment_state
from gateway.tools.top.live_fleet import LiveFleet
from gateway.tools.top.quantities import bar, count, gibibytes, percent, seconds
from gateway.tools.top.view import FleetRow, View, slots_text

Json = dict[str, Any]

MOST_CHANGES = 12
MOST_REQUESTS = 8


def lines_of(row: FleetRow, view: View) -> list[str]:
    """Of a row of the tables fleet, models and hosts."""
    made = {"fleet": _deployment, "models": _model, "hosts": _host}.get(view.name, _facts)
    return list(made(row))


def _deployment(row: FleetRow) -> Iterator[str]:
    facts, fleet = row.facts, row.fleet
    yield f"{facts.get('model', '')} at {facts.get('agent', '')}: {deployment_state(row)}"
    if why := facts.get("reason"):
        yield f"Its agent says: {why}"
    yield ""
    yield from _known(
        ("engine", facts.get("kind")),
        ("version", facts.get("version")),
        ("device", facts.get("device")),
        ("slots in use", slots_text(row)),
        ("at its engine", f"{facts.get('running', 0)} running, {facts.get('waiting', 0)} waiting"),
        ("memory for context", _share(facts.get("kv_use"))),
        ("tokens of answers", f"{count(fleet.rates.of(row.key)[1])} a second"),
        ("health", f"predictions are divided by {facts['health']}" if _slowed(facts) else None),
    )
    yield from (f"  {line}" for line in _gpu_lines(fleet, facts))
    yield from _happened(fleet, row.key, "deployment", row.key)


def _model(row: FleetRow) -> Iterator[str]:
    facts, fleet = row.facts, row.fleet
    yield (
        f"{row.key}: {facts.get('deployments', 0)} deployments serve it, {slots_text(row)} slots in use, "
        f"{facts.get('waiting', 0)} requests wait"
    )
    times = fleet.first_tokens.percentiles(row.key, fleet.at_s, (0.5, 0.9, 0.95, 0.99))
    if times is not None:
        shown = ", ".join(
            f"{name} {seconds(each)}" for name, each in zip(("p50", "p90", "p95", "p99"), times, strict=True)
        )
        yield f"Time to the first token of streams in the last 5 minutes: {shown}"
    yield ""
    places = [(key, each) for key, each in fleet.deployments.items() if each.get("model") == row.key]
    yield "Deployments:" if places else "No deployment has it."
    for key, each in sorted(places):
        place = FleetRow(key, each, fleet)
        rate = count(fleet.rates.of(key)[1])
        yield f"  {key}  {deployment_state(place)}  {slots_text(place)} slots  {rate} tok/s"
    yield from _latest_requests(fleet, "model", row.key)


def _host(row: FleetRow) -> Iterator[str]:
    name, facts, fleet = row.more[0], row.facts, row.fleet
    yield f"{name}: {facts.get('status', '')}" + (", draining" if facts.get("draining") else "")
    if why := facts.get("reason"):
        yield f"It says: {why}"
    yield ""
    labels = ", ".join(f"{key}={value}" for key, value in facts.get("labels", {}).items())
    rtt_s = facts.get("rtt_s")
    yield from _known(
        ("labels", labels),
        ("requests there", str(facts.get("streams", 0))),
        ("round trip", None if rtt_s is None else seconds(rtt_s)),
    )
    yield from (f"  {line}" for line in _gpu_lines(fleet, {"agent": name}))
    own = [(key, each) for key, each in fleet.deployments.items() if each.get("agent") == name]
    yield ""
    yield "Deployments:" if own else "It serves nothing."
    for key, each in sorted(own):
        place = FleetRow(key, each, fleet)
        why = each.get("reason", "")
        yield f"  {key}  {deployment_state(place)}  {slots_text(place)} slots" + (f"  {why}" if why else "")
    yield from _happened(fleet, name, "agent", name)


def _facts(row: FleetRow) -> Iterator[str]:
    yield from (f"{name}: {value}" for name, value in row.facts.items())


def _known(*facts: tuple[str, str | None]) -> Iterator[str]:
    yield from (f"{name + ':':20} {value}" for name, value in facts if value)


def _share(value: float | None) -> str | None:
    return None if value is None else percent(value)


def _slowed(facts: Json) -> bool:
    return bool(0 < facts.get("health", 1) < 1)


def _gpu_lines(fleet: LiveFleet, facts: Json) -> Iterator[str]:
    for index, gpu in fleet.gpus_by_index(facts).items():
        parts = [f"{gpu.get('name') or 'GPU'} {index}"]
        if (use := gpu.get("utilisation")) is not None:
            parts.append(f"{bar(use, 10):10} {percent(use)}")
        if total := gpu.get("memory_total_bytes"):
            parts.append(f"{gibibytes(gpu.get('memory_used_bytes', 0))} of {gibibytes(total)} GiB")
        if (heat := gpu.get("temperature_c")) is not None:
            parts.append(f"{heat:.0f} °C")
        if (power := gpu.get("power_w")) is not None:
            parts.append(f"{power:.0f} W")
        yield "  ".join(parts)


def _happened(fleet: LiveFleet, key: str, of: str, name: str) -> Iterator[str]:
    """The latest changes of state, and the latest requests."""
    own = [each for each in fleet.changes if each.get("of") == of and each.get("name") == name]
    if own:
        yield ""
        yield "Changes of state:"
    for each in own[-MOST_CHANGES:]:
        was, now = each.get("from") or "new", each.get("to") or "gone"
        why = f": {each['why']}" if each.get("why") else ""
        yield f"  {clock(each.get('at', 0.0))}  {was} to {now}{why}"
    yield from _latest_requests(fleet, of, key)


def _latest_requests(fleet: LiveFleet, member: str, value: str) -> Iterator[str]:
    own = [each for _, each in fleet.requests.of("all") if each.get(member) == value]
    own.sort(key=lambda each: -float(each.get("at", 0.0)))
    if own:
        yield ""
        yield "Latest requests:"
    for each in own[:MOST_REQUESTS]:
        took = seconds(float(each.get("total_s") or 0.0))
        yield f"  {clock(each.get('at', 0.0))}  {each.get('id')}  {each.get('state')}  {took}"


def clock(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def record_lines(record: Json) -> list[str]:
    """A decision record in words, as ``trunkline why`` prints it."""
    lines = [str(each) for each in record.get("words", ())]
    if missing := record.get("missing"):
        lines += ["", f"These processes do not answer: {', '.join(map(str, missing))}"]
    return lines
