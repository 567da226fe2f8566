"""Defects that processes log of themselves are found."""

from pathlib import Path

from tests.chaos.logs import defects_in


def test_errors_and_tracebacks_are_counted_and_warnings_are_not(tmp_path: Path) -> None:
    event = '{"event":"dispatch_failed","level":"error","exception":"Traceback…\\nAssertionError: no"}'
    (tmp_path / "gateway.1.log").write_text(f'{event}\n{event}\n{{"event":"x","level":"warning"}}\n')
    (tmp_path / "alpha-1.1.log").write_text(
        "09:06:07 [warning  ] request failed           engine=engine\n"
        "09:06:08 [error    ] agent failed             reason=x\n"
        "Traceback (most recent call last):\n"
    )
    assert sorted(defects_in(tmp_path)) == [
        "1 × alpha-1 logged a traceback",
        "1 × alpha-1 logged agent failed",
        "2 × gateway logged dispatch_failed AssertionError: no",
    ]


def test_as_many_errors_as_are_expected_are_no_defects(tmp_path: Path) -> None:
    line = '{"event":"state_deleted","level":"error"}'
    (tmp_path / "gateway.1.log").write_text(f"{line}\n{line}\n")
    expected = {"gateway logged state_deleted": 1, "gateway logged state_restored_from_backup": 1}
    assert defects_in(tmp_path, expected) == ["1 × gateway logged state_deleted"]
