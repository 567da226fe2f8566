"""What the tables say of deployments, models, hosts and requests."""

from typing import Any

import pytest

from gateway.tools.top.columns import RowFilter
from gateway.tools.top.details import lines_of, record_lines
from gateway.tools.top.fleet_views import DEPLOYMENTS, HOSTS, deployment_state
from gateway.tools.top.live_fleet import LiveFleet
from gateway.tools.top.plain import chosen_rows, snapshot_json, summary, table_of, warnings
from gateway.tools.top.traffic_views import MODELS, REQUESTS
from gateway.tools.top.view import FleetRow, View
from gateway.tools.top.views import VIEWS
from tests.support.staged_gateway import fleet as staged_fleet

GIB = 1024**3
NOW_S = 1_790_000_000.0
GPU = {"name": "H100", "memory_total_bytes": 80 * GIB, "memory_used_bytes": 20 * GIB}
MORE = {"utilisation": 0.5, "temperature_c": 61.0, "power_w": 350.0}


@pytest.fixture
def fleet() -> LiveFleet:
    made = LiveFleet()
    agents = {
        "a": {
            "status": "ready",
            "streams": 2,
            "rtt_s": 0.012,
            "labels": {"zone": "x"},
            "gpus": {"0": GPU | MORE},
        },
        "b": {"status": "away", "streams": 0},
    }
    deployment = {"agent": "a", "model": "m", "kind": "vllm", "status": "loaded", "usable": True, "health": 1}
    deployments = {
        "a/v/m": {**deployment, "slots": 8, "in_flight": 2, "waiting": 1, "utilisation": 0.5, "kv_use": 0.25},
        "a/v/n": {**deployment, "model": "n", "status": "failed", "reason": "out of memory"},
    }
    models = {
        "m": {
            "slots": 8,
            "in_flight": 2,
            "deployments": 1,
            "waiting": 3,
            "oldest_s": 4.2,
            "tiers": {"batch": 3},
        },
        "n": {"slots": 0, "in_flight": 0, "deployments": 0},
    }
    totals = {"running": 2, "waiting": 3, "ended": 0}
    changes = [
        {"at": NOW_S, "of": "deployment", "name": "a/v/n", "from": "loaded", "to": "failed", "why": "oom"}
    ]
    state = {"at": NOW_S, "process": "p", "agents": agents, "deployments": deployments, "models": models}
    made.take("snapshot", {**state, "totals": totals, "changes": changes})
    request = {"id": "r1", "process": "p", "at": NOW_S - 5, "model": "m", "deployment": "a/v/m", "agent": "a"}
    done = {"state": "answered", "streaming": True, "first_byte_s": 0.25, "total_s": 2.0, "queued_s": 0.1}
    failed = {
        "id": "r2",
        "state": "failed",
        "status": 503,
        "error": "overloaded",
        "total_s": 0.01,
        "at": NOW_S - 4,
    }
    made.fill([request | done | {"tokens_in": 10, "tokens_out": 60}, request | failed], recent=True)
    waiting = {"id": "r3", "process": "p", "at": NOW_S - 3, "state": "queued", "model": "m", "queued_s": 0.0}
    made.requests.note(waiting)
    return made


def shown(fleet: LiveFleet, view: View, **options: Any) -> list[dict[str, str]]:
    """The cells of all columns that hold something, by title."""
    known = {"kind": "all", "words": "", "sort": "", "descending": None, **options}
    titles, lines = table_of(chosen_rows(fleet, view, **known), view)
    return [{title: cell for title, cell in zip(titles, line, strict=True) if cell} for line in lines]


def test_a_deployment_shows_its_slots_rates_and_gpus(fleet: LiveFleet) -> None:
    first, second = shown(fleet, DEPLOYMENTS)
    assert first == {
        **{"HOST": "a", "MODEL": "m", "ENGINE": "vllm", "STATE": "loaded", "SLOTS": "2/8", "QUEUE": "1"},
        **{"TOK/S": "2", "KV": "25%", "GPU": "50%", "USE": "████", "MEMORY": "20/80G", "POWER": "350W"},
    }
    assert (second["STATE"], second["WHY"]) == ("failed", "out of memory")


@pytest.mark.parametrize(
    ("facts", "agent", "state"),
    [
        ({"status": "loaded", "usable": True}, {}, "loaded"),
        ({"status": "loading", "load_progress": 0.4}, {}, "loading 40%"),
        ({"status": "loading"}, {}, "loading"),
        ({"status": "loaded", "health": 0, "usable": False}, {}, "circuit open"),
        ({"status": "loaded", "usable": False}, {}, "no work"),
        ({"status": "loaded"}, {"draining": True}, "draining"),
        ({"status": "loaded"}, {"status": "suspended"}, "suspended"),
        ({"status": "failed"}, {"draining": True}, "failed"),
    ],
)
def test_the_state_of_a_deployment_is_a_word(
    facts: dict[str, Any], agent: dict[str, Any], state: str
) -> None:
    fleet = LiveFleet()
    fleet.take("snapshot", {"at": 0.0, "agents": {"a": agent}})
    row = FleetRow("a/v/m", {"agent": "a", **facts}, fleet)
    column = DEPLOYMENTS.column("state")
    assert (deployment_state(row), column.text(row)) == (state, state)
    assert column.tone(row) in ("good", "warn", "bad")


def test_a_model_shows_its_queue_and_how_soon_it_answers(fleet: LiveFleet) -> None:
    first, second = shown(fleet, MODELS, sort="queued", descending=True)
    assert first == {
        **{"MODEL": "m", "DEPLOYED": "1", "RUNNING": "2", "SLOTS": "2/8", "QUEUED": "3", "OLDEST": "4.20 s"},
        **{"TIERS": "b3", "TTFT": "250 ms", "P95": "250 ms", "TOK/S": "2", "IN/S": "0.3"},
    }
    assert second == {
        "MODEL": "n",
        "DEPLOYED": "0",
        "RUNNING": "0",
        "SLOTS": "0/0",
        "TOK/S": "0",
        "IN/S": "0",
    }


def test_a_host_has_a_row_for_each_gpu_and_one_where_it_has_none(fleet: LiveFleet) -> None:
    first, second = shown(fleet, HOSTS)
    assert first == {
        **{"HOST": "a", "STATE": "ready", "RUNNING": "2", "RTT": "12 ms", "GPU": "0", "NAME": "H100"},
        **{"UTIL": "50%", "USE": "█████", "MEMORY": "20/80G", "TEMP": "61C", "POWER": "350W"},
    }
    assert second == {"HOST": "b", "STATE": "away", "RUNNING": "0"}


def test_requests_come_latest_first_and_of_those_that_are_not_over_the_time_goes_on(fleet: LiveFleet) -> None:
    rows = shown(fleet, REQUESTS)
    assert [(each["ID"], each["STATE"], each["TOTAL"]) for each in rows] == [
        ("r3", "queued", "3.00 s"),
        ("r2", "failed 503", "10 ms"),
        ("r1", "answered", "2.00 s"),
    ]
    assert (rows[0]["QUEUED"], rows[1]["ERROR"], rows[2]["TOKENS"]) == ("3.00 s", "overloaded", "10>60")
    assert [each["ID"] for each in shown(fleet, REQUESTS, kind="failed")] == ["r2"]
    assert [each["ID"] for each in shown(fleet, REQUESTS, words="host:a !failed")] == ["r1"]
    assert [each["ID"] for each in shown(fleet, REQUESTS, sort="total", descending=False)] == [
        "r2",
        "r1",
        "r3",
    ]


def test_a_large_fleet_of_all_states_can_be_shown_sorted_and_filtered_by_every_column() -> None:
    fleet = LiveFleet()
    fleet.take("snapshot", staged_fleet(60, 2))
    for view in VIEWS:
        rows = list(view.rows(fleet, "all"))
        for column in view.columns:
            found = chosen_rows(fleet, view, "all", "", column.title, None)
            assert len(found) == len(rows)
            assert all(column.tone(row) in ("", "good", "warn", "bad", "dim", "bar") for row in rows)
    taken = chosen_rows(fleet, DEPLOYMENTS, "all", "state:failed", "", None)
    assert 0 < len(taken) < len(fleet.deployments)
    assert not RowFilter("", DEPLOYMENTS.columns)


def test_the_sums_and_what_makes_them_less_than_all(fleet: LiveFleet) -> None:
    assert summary(fleet) == [
        "2 hosts (1 away)",
        "2 deployments (1 failed)",
        "2/8 slots",
        "2 running",
        "3 waiting",
        "2 tok/s",
    ]
    silent = {"q": {"up": False, "why": "it hangs"}}
    fleet.take("delta", {"at": NOW_S + 1, "processes": silent, "troubles": {"memory": True}})
    assert warnings(fleet) == [
        "the gateway's process q does not answer: it hangs",
        "trouble on the gateway's machine: memory",
    ]
    assert summary(fleet)[-1] == "0 req/s"


def test_json_has_everything_with_rates(fleet: LiveFleet) -> None:
    found = snapshot_json(fleet)
    assert found["totals"]["tokens_per_s"] == 2.0
    assert [(each["key"], each["tokens_per_s"]) for each in found["deployments"]] == [
        ("a/v/m", 2.0),
        ("a/v/n", 0.0),
    ]
    assert found["models"][0]["ttft_p95_s"] == 0.25
    assert {each["id"] for each in found["requests"]} == {"r1", "r2", "r3"}


@pytest.mark.parametrize(
    ("view", "key", "said"),
    [
        (
            DEPLOYMENTS,
            "a/v/m",
            ["m at a: loaded", "slots in use:        2/8", "20 of 80 GiB", "Latest requests:"],
        ),
        (DEPLOYMENTS, "a/v/n", ["Its agent says: out of memory", "loaded to failed: oom"]),
        (MODELS, "m", ["1 deployments serve it", "p50 250 ms", "  a/v/m  loaded  2/8 slots  2 tok/s", "r1"]),
        (MODELS, "n", ["a/v/n  failed"]),
        (
            HOSTS,
            "a/0",
            ["a: ready", "zone=x", "12 ms", "61 °C  350 W", "a/v/n  failed  0/0 slots  out of memory"],
        ),
        (HOSTS, "b", ["b: away", "It serves nothing."]),
    ],
)
def test_details_say_what_is_known(fleet: LiveFleet, view: View, key: str, said: list[str]) -> None:
    (row,) = [each for each in view.rows(fleet, "all") if each.key == key]
    text = "\n".join(lines_of(row, view))
    assert [each for each in said if each not in text] == []


def test_a_decision_record_is_told_in_its_words() -> None:
    assert record_lines({"words": ["It did not wait."], "missing": ["q"]}) == [
        "It did not wait.",
        "",
        "These processes do not answer: q",
    ]


def test_details_name_a_gpu_by_the_index_that_it_has_at_its_host() -> None:
    made = LiveFleet()
    agents = {"a": {"gpus": {str(index): GPU for index in range(4)}}}
    deployments = {"a/v/m": {"agent": "a", "model": "m", "status": "loaded", "gpus": "2,3"}}
    made.take("snapshot", {"at": NOW_S, "agents": agents, "deployments": deployments})
    (row,) = DEPLOYMENTS.rows(made, "all")
    lines = [line.split()[:2] for line in lines_of(row, DEPLOYMENTS) if "GiB" in line]
    assert lines == [["H100", "2"], ["H100", "3"]]
