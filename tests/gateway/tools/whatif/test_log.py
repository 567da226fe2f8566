"""Requests of a time are found in an audit log, wherever in it they are."""

from collections import Counter
from pathlib import Path

from gateway.observability.audit.records import AuditEntry, facts_of, lines_of
from gateway.tools.whatif.log import BIN_S, busiest, read_log, recorded
from shared.protocol.messages import Usage
from tests.gateway.dispatch.decisions.kept import facts
from tests.gateway.tools.whatif.kit import BEGIN_S
from tests.gateway.tools.whatif.test_facts import line


def write(directory: Path, segments: dict[str, range]) -> None:
    """Segments with a request that ended each second of these, and acts between them."""
    directory.mkdir(exist_ok=True)
    for name, seconds in segments.items():
        entries = []
        for second in seconds:
            request = facts(at_s=BEGIN_S + second, usage=Usage(10, second % 7, 0), total_s=0.5)
            entries.append(AuditEntry(BEGIN_S + second, "request", facts_of(request)))
            entries.append(AuditEntry(BEGIN_S + second, "key.create", {"who": "key:1", "model": "m"}))
        (directory / f"2026-09-21.{name}.jsonl").write_bytes(lines_of(entries, 0, "0" * 64)[0])


def ends(found: list[float]) -> list[int]:
    return [round(each + 0.5 - BEGIN_S) for each in found]


def test_the_requests_of_a_time_are_found_over_several_segments(tmp_path: Path) -> None:
    write(tmp_path, {"0001": range(500), "0002": range(500, 900), "0003": range(900, 1500)})
    found = read_log(tmp_path, BEGIN_S + 450, BEGIN_S + 1200, 10_000)
    assert ends([each.at_s for each in found.facts]) == list(range(451, 1201))
    assert (found.seen, found.left_out) == (751, {"earlier": 1})
    assert (found.from_s, found.until_s) == (BEGIN_S + 450, BEGIN_S + 1200)


def test_of_too_many_those_of_the_busiest_time_are_replayed(tmp_path: Path) -> None:
    write(tmp_path, {"0001": range(0, 600, 5), "0002": range(600, 660), "0003": range(660, 1200, 5)})
    found = read_log(tmp_path, BEGIN_S, BEGIN_S + 1200, 80)
    assert len(found.facts) <= 80 < found.seen
    assert {*range(601, 659)} <= {*ends([each.at_s for each in found.facts])}
    assert found.until_s - found.from_s < 200


def test_no_log_and_lines_that_are_no_records_give_nothing(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none", 0.0, 1e10, 10).facts == []
    torn = b'{"at":"2026-09-21T14:13:20.000Z","kind":"request","model":"m",\n'
    (tmp_path / "2026-09-21.0001.jsonl").write_bytes(torn + b"nonsense\n" + b'{"at":"2026-')
    found = read_log(tmp_path, BEGIN_S - 1e6, BEGIN_S + 1e6, 10)
    assert (found.facts, found.left_out) == ([], {"unreadable": 1})


def test_the_busiest_time_has_no_more_than_may_be_but_always_something() -> None:
    counts = Counter({1: 5, 2: 50, 3: 30, 4: 5})
    assert busiest(counts, 84) == (2 * BIN_S, 4 * BIN_S)
    assert busiest(counts, 10) == (2 * BIN_S, 3 * BIN_S)
    assert busiest(counts, 1000) == (1 * BIN_S, 5 * BIN_S)


def test_decision_records_in_memory_are_taken_in_the_same_way() -> None:
    known = [line(), line(model=None), {**line(), "at": "2020-01-01T00:00:00.000Z"}]
    found = recorded(known, BEGIN_S - 60, BEGIN_S + 60, 10)
    assert [each.model for each in found.facts] == ["m"]
    assert found.seen == 1
