"""``trunkline top --once``: one look, as a plain table or as JSON, for scripts. Pure."""

from collections.abc import Sequence
from typing import Any

from gateway.tools.top.columns import RowFilter, sort_rows
from gateway.tools.top.live_fleet import LiveFleet
from gateway.tools.top.quantities import count
from gateway.tools.top.view import FleetRow, View
from shared.process.excerpt import printable

Json = dict[str, Any]


def chosen_rows(
    fleet: LiveFleet, view: View, kind: str, words: str, sort: str, descending: bool | None
) -> list[FleetRow]:
    """The rows of a table, filtered and sorted. ``descending`` None: as the column is at first."""
    wanted = RowFilter(words, view.columns)
    rows = view.rows(fleet, kind)
    column = view.column(sort)
    down = column.descending if descending is None else descending
    return sort_rows(filter(wanted.takes, rows) if wanted else rows, column, descending=down)


def table_of(rows: Sequence[FleetRow], view: View) -> tuple[list[str], list[list[str]]]:
    """Titles and cells, of all columns that any row has something for."""
    cells = [[printable(each.text(row)) for each in view.columns] for row in rows]
    used = [index for index in range(len(view.columns)) if any(line[index] for line in cells)]
    titles = [view.columns[index].title for index in used]
    return titles, [[line[index] for index in used] for line in cells]


def summary(fleet: LiveFleet) -> list[str]:
    """The sums over all, as parts of a line."""
    agents, deployments = fleet.agents.values(), fleet.deployments.values()
    away = sum(each.get("status") == "away" for each in agents)
    failed = sum(each.get("status") == "failed" for each in deployments)
    slots = sum(int(each.get("slots", 0)) for each in deployments)
    used = sum(int(each.get("in_flight", 0)) for each in deployments)
    parts = [
        f"{len(agents)} host{'s' * (len(agents) != 1)}" + (f" ({away} away)" if away else ""),
        f"{len(deployments)} deployment{'s' * (len(deployments) != 1)}"
        + (f" ({failed} failed)" if failed else ""),
        f"{used}/{slots} slots",
        f"{fleet.totals.get('running', 0)} running",
        f"{fleet.totals.get('waiting', 0)} waiting",
        f"{count(fleet.rates.total()[1])} tok/s",
    ]
    per_s = fleet.requests_per_s
    return parts if per_s is None else [*parts, f"{count(per_s)} req/s"]


def warnings(fleet: LiveFleet) -> list[str]:
    """What makes the tables tell less than all, or wants a look."""
    found = [f"the gateway's process {name} does not answer: {why}" for name, why in silent(fleet)]
    found += [f"trouble on the gateway's machine: {each}" for each in fleet.troubles()]
    return found


def silent(fleet: LiveFleet) -> list[tuple[str, str]]:
    """Processes that do not answer, and why."""
    return sorted(fleet.silent_processes().items())


def snapshot_json(fleet: LiveFleet) -> Json:
    """Everything in one object: facts as in docs/admin.md, with the rates that are computed here."""
    models = fleet.rates.of_models(fleet.deployments)
    return {
        "at": fleet.at_s,
        "process": fleet.state.get("process"),
        "processes": fleet.state.get("processes", {}),
        "totals": dict(fleet.totals) | {"tokens_per_s": round(fleet.rates.total()[1], 2)},
        "troubles": fleet.troubles(),
        "agents": [{"name": name, **facts} for name, facts in fleet.agents.items()],
        "deployments": [
            {"key": key, **facts, "tokens_per_s": round(fleet.rates.of(key)[1], 2)}
            for key, facts in fleet.deployments.items()
        ],
        "models": [
            {"name": name, **facts, "tokens_per_s": round(models.get(name, (0.0, 0.0))[1], 2)}
            | _first_tokens(fleet, name)
            for name, facts in fleet.models.items()
        ],
        "requests": [each for _, each in fleet.requests.of("all")],
    }


def _first_tokens(fleet: LiveFleet, model: str) -> Json:
    found = fleet.first_tokens.percentiles(model, fleet.at_s, (0.5, 0.95))
    return {} if found is None else {"ttft_p50_s": found[0], "ttft_p95_s": found[1]}
