"""The tables of models with their queues, and of requests. Pure."""

import time
from collections.abc import Callable, Iterator

from gateway.tools.top.columns import Column
from gateway.tools.top.live_fleet import LiveFleet
from gateway.tools.top.quantities import count, seconds
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

# --- Models ---


def _model_rows(fleet: LiveFleet, kind: str) -> Iterator[FleetRow]:
    rates = fleet.rates.of_models(fleet.deployments)
    for name, facts in fleet.models.items():
        times = fleet.first_tokens.percentiles(name, fleet.at_s, (0.5, 0.95))
        yield FleetRow(name, facts, fleet, (times, rates.get(name, (0.0, 0.0))))


def _first_token(index: int) -> Callable[[FleetRow], float | None]:
    return lambda row: None if row.more[0] is None else row.more[0][index]


def _tiers(row: FleetRow) -> str:
    found = row.facts.get("tiers", {})
    known = ("realtime", "standard", "batch")
    return " ".join(f"{name[:1]}{found[name]}" for name in known if found.get(name))


MODELS = View(
    "models",
    "Models",
    (
        Column("MODEL", 16, lambda row: row.key, lambda row: row.key, need=9, flexible=4),
        number_column("DEPLOYED", 8, fact_number("deployments"), count, "deployments that serve it", need=5),
        number_column("RUNNING", 7, fact_number("in_flight"), count, "requests at engines", need=8),
        Column(
            "SLOTS",
            9,
            slots_text,
            slots_used,
            "in use, of those granted; sorts by the share",
            right=True,
            need=6,
            descending=True,
            tone=tone_of_share(slots_used),
        ),
        number_column(
            "QUEUED",
            6,
            fact_number("waiting"),
            count,
            "requests that wait at the gateway",
            need=8,
            tone=lambda row: "warn" if row.facts.get("waiting") else "",
        ),
        number_column(
            "OLDEST",
            7,
            lambda row: row.facts.get("oldest_s") or None,
            seconds,
            "how long the first of them has waited",
            need=5,
        ),
        Column("TIERS", 10, _tiers, _tiers, "waiting: r realtime, s standard, b batch", need=2),
        number_column(
            "TTFT", 7, _first_token(0), seconds, "time to the first token: half are sooner, in 5 min", need=7
        ),
        number_column("P95", 7, _first_token(1), seconds, "time to the first token: 95 % are sooner", need=6),
        number_column("TOK/S", 7, lambda row: row.more[1][1], count, "tokens of answers a second", need=7),
        number_column("IN/S", 7, lambda row: row.more[1][0], count, "tokens of prompts a second", need=3),
    ),
    _model_rows,
    "MODEL",
    "No model is served: no agent is connected that offers one.",
)

# --- Requests ---


def _request_rows(fleet: LiveFleet, kind: str) -> Iterator[FleetRow]:
    for (process, id_), facts in fleet.requests.of(kind):
        yield FleetRow(f"{process} {id_}", facts, fleet)


def _total_s(row: FleetRow) -> float:
    """So far, of one that is not over."""
    if row.facts.get("state") in ("queued", "running"):
        return max(0.0, row.fleet.at_s - float(row.facts.get("at", 0.0)))
    return float(row.facts.get("total_s") or 0.0)


def _queued_s(row: FleetRow) -> float | None:
    return _total_s(row) if row.facts.get("state") == "queued" else row.facts.get("queued_s")


def _request_state(row: FleetRow) -> str:
    state = str(row.facts.get("state", ""))
    status = row.facts.get("status")
    return f"failed {status}" if state == "failed" and status else state


def _tone_of_request(row: FleetRow) -> str:
    state = row.facts.get("state")
    if state == "failed":
        return "bad"
    return {"queued": "warn", "running": "good", "cancelled": "dim"}.get(str(state), "")


def _clock(row: FleetRow) -> str:
    return time.strftime("%H:%M:%S", time.localtime(float(row.facts.get("at", 0.0))))


def _tokens_of_request(row: FleetRow) -> str:
    prompt, completion = row.facts.get("tokens_in"), row.facts.get("tokens_out")
    return "" if prompt is None and completion is None else f"{prompt or 0}>{completion or 0}"


REQUESTS = View(
    "requests",
    "Requests",
    (
        Column("TIME", 8, _clock, fact_number("at"), "when it arrived", need=9, descending=True),
        text_column(
            "ID", "id", 12, "as in the answer's header x-request-id", need=5, flexible=2, keep_end=True
        ),
        Column("STATE", 10, _request_state, _request_state, need=9, tone=_tone_of_request),
        Column(
            "MODEL",
            12,
            lambda row: str(row.facts.get("alias") or row.facts.get("model") or ""),
            lambda row: str(row.facts.get("alias") or row.facts.get("model") or ""),
            "the model or alias that was asked for",
            need=8,
            flexible=2,
        ),
        text_column("KEY", "key", 8, need=4, flexible=1),
        text_column("TENANT", "tenant", 8, need=2),
        text_column("TIER", "tier", 8, need=1),
        text_column("HOST", "agent", 8, "the last that it went to", need=7, flexible=1),
        number_column("QUEUED", 7, _queued_s, seconds, "time waited for a slot", need=6),
        number_column("FIRST", 7, fact_number("first_byte_s"), seconds, "until its answer began", need=6),
        number_column("TOTAL", 7, _total_s, seconds, "in all, or so far", need=8),
        Column(
            "TOKENS",
            11,
            _tokens_of_request,
            fact_number("tokens_out"),
            "of prompt > answer; sorts by the answer",
            right=True,
            need=3,
            descending=True,
        ),
        number_column("TRIES", 5, fact_number("attempts"), count, "deployments that it went to", need=1),
        text_column("ERROR", "error", 12, "the code that its client got", need=2, flexible=1),
    ),
    _request_rows,
    "TIME",
    "There is no such request, or none that is kept.",
)
