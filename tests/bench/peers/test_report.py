import json
import xml.etree.ElementTree
from pathlib import Path

import pytest

from tests.bench.peers import document, report
from tests.bench.peers.run import Results, figures_of, median_of
from tests.bench.peers.workloads import Scale, workloads
from tests.bench.written import END, begin_of

_TIMES = {"count": 1, "mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "p999": 1.0, "max": 1.0}


def results(**cpu_us: dict[str, float]) -> Results:
    """Peers with that CPU time a token by role, in one round of ``paced``."""
    chosen = tuple(each for each in workloads(Scale()) if each.name == "paced")
    made = Results(Scale(), chosen, 1, {"cores": 2}, "today", skipped={"litellm": "not installed"})
    for peer, roles in cpu_us.items():
        figures = {
            "cpu_us": roles,
            "cpu_us_total": sum(roles.values()),
            "one_way_us": {**_TIMES, "p99": 2500.0},
            "rss_mb": dict.fromkeys(roles, 10.0),
        }
        made.samples.append((0, peer.replace("_", "+"), "paced", figures))
    return made


def test_a_median_is_taken_of_each_number_that_all_rounds_have() -> None:
    rounds = [
        {"a": 1.0, "by": {"p": 3.0, "q": 9.0}},
        {"a": 5.0, "by": {"p": 4.0}},
        {"a": 2.0, "by": {"p": 8.0}},
    ]
    assert median_of(rounds) == {"a": 2.0, "by": {"p": 4.0}}


def test_cpu_is_that_of_all_processes_of_a_role_over_what_was_done() -> None:
    use = {"user_s": 0.5, "system_s": 0.25, "rss_bytes": 10**6, "peak_rss_bytes": 2 * 10**6}
    seen = {
        **dict.fromkeys(("latency_us", "first_token_us", "gap_us", "one_way_us"), _TIMES),
        "seconds": 2.0,
        "tokens": 30_000,
        "right": 10,
        "errors": {"status": 1, "short": 2, "connection": 0},
        "last_status": 500,
        "error_text": "no",
        "own_cores": 0.1,
        "processes": dict.fromkeys("123", use),
    }
    paced = next(each for each in workloads(Scale()) if each.name == "paced")
    figures = figures_of(seen, {"ssh": [1, 2], "nginx": [3]}, paced)
    assert figures["cpu_us"] == {"ssh": 50.0, "nginx": 25.0}
    assert figures["cpu_us_total"] == 75.0
    assert figures["rss_mb"] == {"ssh": 2.0, "nginx": 1.0}
    assert (figures["errors"], figures["error"]) == (3, "500 no")


def test_a_goal_is_met_against_the_peers_of_the_same_run() -> None:
    seen = results(trunkline={"gateway": 10.0, "agent": 12.0}, nginx={"nginx": 11.0}, ssh_nginx={"all": 40.1})
    by_text = {goal.text: goal.met for goal in report.goals(seen)}
    assert by_text["paced, gateway alone, 0.7 × nginx"] is False
    assert by_text["paced, gateway and agent, 0.55 × the cheapest tunnel"] is True
    assert by_text["unary, gateway and agent, 4 × the vLLM router"] is None
    assert by_text["paced, one way, p99, ms"] is True


def test_ours_is_also_told_by_its_halves() -> None:
    table = report.rows(results(trunkline={"gateway": 10.0, "agent": 12.0}, nginx={"nginx": 11.0}))
    column = table[0].index("CPU µs/token, paced")
    assert [(row[0], row[column]) for row in table[1:]] == [
        ("trunkline", "22.0"),
        ("its gateway", "10.0"),
        ("its agent", "12.0"),
        ("nginx", "11.0"),
    ]


def test_a_peer_that_fell_behind_the_pace_is_marked() -> None:
    seen = results(trunkline={"gateway": 10.0, "agent": 12.0}, nginx={"nginx": 11.0})
    for _, peer, _, figures in seen.samples:
        figures["kept_up"] = 0.5 if peer == "trunkline" else 0.99
    table = report.rows(seen)
    column = table[0].index("CPU µs/token, paced")
    assert [row[column] for row in table[1:]] == ["22.0*", "10.0*", "12.0*", "11.0"]
    assert report.BEHIND in report.told(seen)


def test_tokens_that_come_at_the_pace_but_later_than_the_next_is_due_are_a_backlog() -> None:
    seen = results(trunkline={"gateway": 1.0, "agent": 1.0}, nginx={"nginx": 11.0})
    for _, peer, _, figures in seen.samples:
        figures |= {"kept_up": 1.0, "interval_us": 50_000}
        figures["one_way_us"] |= {"p50": 338_000.0 if peer == "trunkline" else 17_000.0}
    by_text = {goal.text: goal.met for goal in report.goals(seen)}
    assert by_text["paced, gateway alone, 0.7 × nginx"] is None, "not met by falling behind"
    column = report.rows(seen)[0].index("CPU µs/token, paced")
    assert [row[column][-1] == "*" for row in report.rows(seen)[1:]] == [True, True, True, False]


def test_how_busy_others_kept_the_machine_is_said() -> None:
    seen = results(nginx={"nginx": 11.0})
    seen.samples[0][3]["others_cores"] = 0.75
    assert "other programs kept 0.75 cores busy" in report.told(seen)
    assert "**" in document.block(seen, "x.svg").splitlines()[0]


def test_it_is_said_where_the_far_ends_of_tunnels_had_another_core() -> None:
    seen = results(nginx={"nginx": 11.0})
    assert report.APART not in report.told(seen) + document.block(seen, "x.svg")
    seen.gateway_apart = True
    assert report.APART in report.told(seen)
    assert report.APART in document.block(seen, "x.svg")
    assert json.loads(report.as_json(seen))["gateway_apart"] is True


def test_what_was_not_run_is_said_with_its_reason_and_json_holds_all_samples() -> None:
    seen = results(nginx={"nginx": 11.0})
    assert "not run: litellm: not installed" in report.told(seen)
    value = json.loads(report.as_json(seen))
    assert value["medians"]["nginx"]["paced"]["cpu_us_total"] == 11.0
    assert len(value["samples"]) == 1


def test_a_document_gets_new_figures_between_its_marks_and_a_chart_beside_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin_of('peers')}\nold\n{END}\nafter\n")
    seen = results(trunkline={"gateway": 10.0, "agent": 12.0}, nginx={"nginx": 900.0})
    document.write(seen, page)
    first = page.read_text()
    document.write(seen, page)
    assert page.read_text() == first
    assert first.startswith("before\n")
    assert first.endswith("after\n")
    assert "old" not in first
    assert "| nginx | 900 |" in first
    drawn = xml.etree.ElementTree.fromstring((tmp_path / "page.svg").read_text())
    assert any("(10.0 + 12.0)" in (each.text or "") for each in drawn.iter())


def test_a_document_without_marks_is_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("mine\n")
    with pytest.raises(ValueError, match="no place for figures"):
        document.write(results(), page)
    assert page.read_text() == "mine\n"


@pytest.mark.parametrize("load", ["peers", "memory", "scale"])
def test_the_project_s_own_document_has_a_place_for_figures(load: str) -> None:
    text = Path("docs/performance.md").read_text()
    assert END in text.partition(begin_of(load))[2]
