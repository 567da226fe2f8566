"""The log read in parts: every line once, whatever is written or deleted meanwhile."""

import orjson
import pytest

from gateway.observability.audit import AuditFiles, segments
from gateway.observability.audit.segments import read_page
from gateway.storage.errors import BadValue
from tests.gateway.observability.audit.logs import DAY_S, NOON_S, append, entries, records


def write(files: AuditFiles, days: int, lines: int = 5) -> None:
    for day in range(days):
        at_s = NOON_S + day * DAY_S
        append(files, entries(lines, at_s=at_s), at_s)


def all_pages(files: AuditFiles, most: int | None = None) -> list[list[str]]:
    pages, after = [], None
    while True:
        page = read_page(files.directory, "", ("test",), after, most)
        pages.append(page.lines)
        if page.next is None:
            return pages
        after = page.next


@pytest.mark.parametrize("most", [1, 2, 7, 15, 1000])
def test_pages_have_every_line_once(files: AuditFiles, most: int) -> None:
    write(files, 3)
    pages = all_pages(files, most)
    assert all(len(page) <= most for page in pages)
    expected = [record for record in records(files.directory) if record["kind"] == "test"]
    assert [orjson.loads(line) for page in pages for line in page] == expected
    assert len(expected) == 15


def test_a_page_reads_so_much_of_the_log_whether_it_is_wanted_or_not(
    files: AuditFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(files, 3)
    monkeypatch.setattr(segments, "PAGE_BYTES", 300)
    page = read_page(files.directory, "", ("nothing.",), None)
    assert page.lines == []
    assert page.next is not None
    assert len(all_pages(files)) > 3


def test_reading_goes_on_behind_a_segment_that_was_deleted(files: AuditFiles) -> None:
    write(files, 3)
    page = read_page(files.directory, "", ("test",), None, 2)
    assert page.next is not None
    first = sorted(files.directory.glob("*.jsonl"))[0]
    assert page.next.startswith(first.name)
    first.unlink()
    rest = read_page(files.directory, "", ("test",), page.next)
    assert (len(rest.lines), rest.next) == (10, None)


def test_a_line_that_is_being_written_is_not_told(files: AuditFiles) -> None:
    write(files, 1)
    with next(files.directory.glob("*.jsonl")).open("ab") as file:
        file.write(b'{"at":"2026-11-21T12:00:00.000Z","kind":"test"')
    assert len(read_page(files.directory, "", ("test",), None).lines) == 5


@pytest.mark.parametrize(
    "after",
    ["", "x", "2026-11-21.0001.jsonl", "2026-11-21.0001.jsonl@", "../head.json@0", "2026-11-21.0001.jsonl@²"],
)
def test_a_place_that_is_none_is_refused(files: AuditFiles, after: str) -> None:
    with pytest.raises(BadValue):
        read_page(files.directory, "", (), after)
