"""The process that a gateway starts: a task in, lines out."""

from pathlib import Path
from typing import Any

from gateway.observability.audit.records import AuditEntry, facts_of, lines_of
from gateway.tools.whatif.child import ProgressLines, answer
from shared.protocol.messages import Usage
from tests.gateway.dispatch.decisions.kept import facts
from tests.gateway.tools.whatif.kit import BEGIN_S, fleet_json


def task(log: Path | None, wanted: str = "run", **body: Any) -> dict[str, Any]:
    return {
        **{"wanted": wanted, "fleet": fleet_json(), "body": body, "until_s": BEGIN_S + 60, "most": 1000},
        **{"log": None if log is None else str(log), "records": []},
    }


def logged(directory: Path) -> Path:
    entries = [
        AuditEntry(at_s, "request", facts_of(facts(at_s=at_s, usage=Usage(100, 20, 0), queue_s=0.0)))
        for at_s in (BEGIN_S + each for each in range(1, 20))
    ]
    (directory / "2026-09-21.0001.jsonl").write_bytes(lines_of(entries, 0, "0" * 64)[0])
    return directory


def test_a_task_is_answered_from_the_log(tmp_path: Path) -> None:
    found = answer(task(logged(tmp_path)), lambda done, of: None)
    assert found["result"]["requests"] == 19
    exported = answer(task(tmp_path, "facts"), lambda done, of: None)["result"]
    assert (exported["header"]["seen"], len(exported["facts"])) == (19, 19)


def test_what_is_wrong_is_an_error_with_its_code(tmp_path: Path) -> None:
    nothing = answer(task(None), lambda done, of: None)["error"]
    assert (nothing["code"], "no request was over" in nothing["message"]) == ("nothing_to_replay", True)
    bad = answer(task(logged(tmp_path), policy="best"), lambda done, of: None)["error"]
    assert (bad["code"], bad["param"]) == ("invalid_value", "policy")
    directory = tmp_path / "2026-09-22.0001.jsonl"
    directory.mkdir()
    unreadable = answer(task(tmp_path), lambda done, of: None)["error"]
    assert unreadable["code"] == "unreadable"


def test_progress_is_told_now_and_then() -> None:
    now, told = [0.0], list[dict[str, Any]]()
    lines = ProgressLines(told.append, lambda: now[0])
    for done in range(10):
        now[0] += 0.1
        lines(done, 10)
    assert len(told) == 5
    assert told[0] == {"progress": {"done": 0, "of": 10}}
