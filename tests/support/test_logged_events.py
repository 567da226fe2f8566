"""A test reads a log while it is written."""

from pathlib import Path

from tests.support.logged_events import logged_events


def test_a_line_of_which_a_part_is_written_is_no_event_yet(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_text('  listens here\n{"event":"came","n":1}\n{"event":"went"}\n{"event":"came","n":')
    assert logged_events(log, "came") == [{"event": "came", "n": 1}]
    with log.open("a") as more:
        more.write("2}\n")
    assert logged_events(log, "came") == [{"event": "came", "n": 1}, {"event": "came", "n": 2}]
    assert [each["event"] for each in logged_events(log)] == ["came", "went", "came"]
    assert logged_events(log, "other") == []


def test_a_log_without_a_line_has_no_events(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_text("")
    assert logged_events(log) == []
    log.write_text('{"event"')
    assert logged_events(log) == []
