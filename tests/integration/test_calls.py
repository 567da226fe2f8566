"""A unary request and a streamed token make no more calls than their budget: ``tests/run bench calls``."""

from pathlib import Path

from tests.bench import calls


def test_requests_and_tokens_make_no_more_calls_than_their_budget(tmp_path: Path) -> None:
    tables = calls.run(tmp_path, rounds=1)  # there are more where one is over budget
    print(tables)  # noqa: T201 - where it fails, the whole table says why
    assert len(tables.tables) == len(calls.BUDGETS)
    assert not [line for table in tables.tables for line in table.over_budget()]
