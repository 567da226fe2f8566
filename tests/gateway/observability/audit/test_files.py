"""Appending to the audit log: order, recovery after crashes, several writers, segments that come and go."""

import errno
import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.observability.audit import AuditFiles, AuditUnwritable, Retention
from gateway.observability.audit.records import LINE_BYTES, START, AuditEntry, hash_of
from gateway.observability.audit.segments import HEAD, next_segment_name, segment_names, segment_order
from shared.identity import GatewayIdentity, generate_key
from tests.gateway.observability.audit.logs import DAY_S, NOON_S, append, entries, kinds, records, verified


def pruned(files: AuditFiles, wall_s: float) -> list[str]:
    with files.held(wall_s) as appender:
        return appender.prune(wall_s)


def only_segment(files: AuditFiles) -> Path:
    (name,) = segment_names(files.directory)
    return files.directory / name


def test_each_line_names_the_hash_of_the_one_before(files: AuditFiles) -> None:
    append(files, entries(3), NOON_S)
    append(files, entries(2), NOON_S + 1)
    lines = only_segment(files).read_bytes().splitlines()
    read = records(files.directory)
    assert [record["seq"] for record in read] == [1, 2, 3, 4, 5, 6]
    assert [record["prev"] for record in read] == [START, *map(hash_of, lines[:-1])]
    assert kinds(files.directory) == ["segment", *["test"] * 5]
    assert read[1] == {
        "seq": 2,
        "prev": hash_of(lines[0]),
        "at": "2026-11-21T12:00:00.000Z",
        "kind": "test",
        "n": 0,
    }


def test_the_log_is_for_its_owner_only(files: AuditFiles) -> None:
    append(files, entries(1), NOON_S)
    assert files.directory.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in files.directory.iterdir()} == {0o600}


def test_a_new_day_and_a_long_segment_begin_another_segment(
    tmp_path: Path, identity: GatewayIdentity
) -> None:
    files = AuditFiles(tmp_path / "audit", lambda: identity, Retention(segment_bytes=500))
    for at_s in (NOON_S, NOON_S, NOON_S, NOON_S + DAY_S, NOON_S, NOON_S):
        append(files, entries(2), at_s)
    assert segment_names(files.directory) == [
        "2026-11-21.0001.jsonl",
        "2026-11-21.0002.jsonl",
        "2026-11-22.0001.jsonl",
        "2026-11-22.0002.jsonl",
    ]
    assert verified(files, identity).findings == []


def test_segments_are_in_order_whatever_the_clock_and_their_number() -> None:
    assert next_segment_name("", "2026-11-21") == "2026-11-21.0001.jsonl"
    assert next_segment_name("2026-11-22.0009.jsonl", "2026-11-21") == "2026-11-22.0010.jsonl"
    assert (
        segment_order("2026-11-22.9999.jsonl")
        < segment_order("2026-11-22.10000.jsonl")
        < segment_order("2026-11-23.0001.jsonl")
    )


@pytest.mark.parametrize("torn", [b'{"seq":5,"pr', b"\0" * 40, b'{"seq":5,"prev":"00"}\n', b"\n\n"])
def test_an_incomplete_line_is_cut_off_and_said(
    files: AuditFiles, identity: GatewayIdentity, torn: bytes
) -> None:
    append(files, entries(3), NOON_S)
    with only_segment(files).open("ab") as file:
        file.write(torn)
    append(files, entries(1), NOON_S)
    assert kinds(files.directory) == ["segment", "test", "test", "test", "recovered", "test"]
    said = records(files.directory)[4]
    assert (said["lines"], said["cut_bytes"], said["cut_hash"]) == (0, len(torn), hash_of(torn))
    report = verified(files, identity)
    assert not report.findings
    assert f"{len(torn)} bytes of an incomplete one cut off" in report.notes[0]


def test_lines_that_were_written_before_a_crash_but_not_acknowledged_are_taken_over_and_said(
    files: AuditFiles, identity: GatewayIdentity
) -> None:
    append(files, entries(1), NOON_S)
    before = (files.directory / HEAD).read_bytes()
    append(files, entries(2), NOON_S)
    (files.directory / HEAD).write_bytes(before)
    assert verified(files, identity).notes == ["lines 3 to 4 are not signed yet: the writer was interrupted"]
    append(files, entries(1), NOON_S)
    assert kinds(files.directory) == ["segment", "test", "test", "test", "recovered", "test"]
    assert records(files.directory)[4]["lines"] == 2
    assert not verified(files, identity).findings


def test_a_crash_while_a_segment_is_begun_leaves_nothing_behind(
    files: AuditFiles, identity: GatewayIdentity
) -> None:
    append(files, entries(1), NOON_S)
    (files.directory / "2026-11-22.0001.jsonl").write_bytes(b"")
    append(files, entries(1), NOON_S)
    (files.directory / "2026-11-22.0001.jsonl").write_bytes(b'{"se')
    append(files, entries(1), NOON_S + DAY_S)
    assert segment_names(files.directory) == ["2026-11-21.0001.jsonl", "2026-11-22.0001.jsonl"]
    assert kinds(files.directory) == ["segment", "test", "test", "segment", "recovered", "test"]
    assert not verified(files, identity).findings


class FullDisk:
    """Takes ``room_bytes`` more and then nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self._write = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, file: int, data: bytes | memoryview) -> int:
        if not self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(file, memoryview(data)[: self.room_bytes])
        self.room_bytes -= written
        return written


@pytest.mark.parametrize("room_bytes", [0, 1, 100, 333])
def test_a_full_disk_appends_nothing_and_says_so(
    files: AuditFiles, identity: GatewayIdentity, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    append(files, entries(1), NOON_S)
    before = only_segment(files).read_bytes()
    with monkeypatch.context() as patch:
        FullDisk(patch, room_bytes)
        with pytest.raises(AuditUnwritable, match="No space left"):
            append(files, entries(9), NOON_S)
    assert only_segment(files).read_bytes() == before
    append(files, entries(9), NOON_S)
    assert kinds(files.directory) == ["segment", *["test"] * 10]
    assert not verified(files, identity).findings


class FullForHeads:
    """The head finds no room, though the lines before it did; of ``takes`` bytes a write, nothing more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: int = 0) -> None:
        self._open, self._write, self._takes = os.open, os.write, takes
        self._heads: set[int] = set()
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "write", self.write)

    def open(self, path: Path, *rest: int) -> int:
        file = self._open(path, *rest)
        (self._heads.add if str(path).endswith(".new") else self._heads.discard)(file)
        return file

    def write(self, file: int, data: bytes | memoryview) -> int:
        if file not in self._heads:
            return self._write(file, data)
        if not self._takes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(file, memoryview(data)[: self._takes])


def test_lines_for_whose_head_there_is_no_room_are_not_there_twice_when_they_come_again(
    files: AuditFiles, identity: GatewayIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(files, entries(1), NOON_S)
    segment = only_segment(files)
    before = segment.read_bytes()
    with monkeypatch.context() as patch:
        FullForHeads(patch)
        for at_s in (NOON_S, NOON_S, NOON_S + DAY_S):
            with pytest.raises(AuditUnwritable, match="No space left"):
                append(files, entries(2), at_s)
            assert verified(files, identity).findings == verified(files, identity).notes == []
    assert segment.read_bytes() == before
    append(files, entries(2), NOON_S)
    assert kinds(files.directory) == ["segment", *["test"] * 3]
    assert verified(files, identity).findings == verified(files, identity).notes == []


def test_what_a_link_leads_to_that_comes_in_between_is_not_cut_short(
    files: AuditFiles, tmp_path: Path
) -> None:
    append(files, entries(1), NOON_S)
    theirs = tmp_path / "theirs"
    theirs.write_text("all of it")
    with files.held(NOON_S) as appender:
        (files.directory / "2026-11-22.0001.jsonl").symlink_to(theirs)
        with pytest.raises(OSError, match="symbolic link"):
            appender.append(entries(1), NOON_S + DAY_S)
    assert theirs.read_text() == "all of it"


def test_a_head_is_written_whole_by_a_disk_that_takes_little_at_a_time(
    files: AuditFiles, identity: GatewayIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        FullForHeads(patch, takes=100)
        append(files, entries(1), NOON_S)
    assert not verified(files, identity).findings


def test_what_was_cut_off_is_said_later_when_the_disk_was_full_at_first(
    files: AuditFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(files, entries(1), NOON_S)
    with only_segment(files).open("ab") as file:
        file.write(b"torn")
    with monkeypatch.context() as patch:
        FullDisk(patch, 0)
        with pytest.raises(AuditUnwritable):
            append(files, entries(1), NOON_S)
    append(files, entries(1), NOON_S)
    assert kinds(files.directory) == ["segment", "test", "recovered", "test"]


def _append(directory: Path, identity: GatewayIdentity) -> None:
    files = AuditFiles(directory, lambda: identity, Retention(segment_bytes=2000))
    for _ in range(10):
        append(files, entries(2), NOON_S)


def test_several_processes_append_in_turn(files: AuditFiles, identity: GatewayIdentity) -> None:
    several = multiprocessing.get_context("fork")
    processes = [several.Process(target=_append, args=(files.directory, identity)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert kinds(files.directory).count("test") == 60
    assert verified(files, identity).findings == verified(files, identity).notes == []


def test_segments_are_deleted_after_their_days_and_the_rest_verifies(
    tmp_path: Path, identity: GatewayIdentity
) -> None:
    files = AuditFiles(tmp_path / "audit", lambda: identity, Retention(days=2))
    for day in range(5):
        append(files, entries(3), NOON_S + day * DAY_S)
    assert pruned(files, NOON_S + 4 * DAY_S) == ["2026-11-21.0001.jsonl", "2026-11-22.0001.jsonl"]
    assert pruned(files, NOON_S + 4 * DAY_S) == []
    report = verified(files, identity)
    assert not report.findings
    assert (report.first_seq, report.segments) == (9, 3)
    assert "older segments were deleted, up to 2026-11-22.0001.jsonl" in report.notes[0]


def test_no_more_is_kept_than_fits(tmp_path: Path, identity: GatewayIdentity) -> None:
    files = AuditFiles(tmp_path / "audit", lambda: identity, Retention(total_bytes=3000, segment_bytes=1000))
    for _ in range(20):
        append(files, entries(3), NOON_S)
    assert pruned(files, NOON_S)
    assert sum(each.stat().st_size for each in files.directory.glob("*.jsonl")) <= 3000 + 300
    assert not verified(files, identity).findings


def test_the_last_segment_is_never_deleted(tmp_path: Path, identity: GatewayIdentity) -> None:
    files = AuditFiles(tmp_path / "audit", lambda: identity, Retention(days=1, total_bytes=0))
    append(files, entries(1), NOON_S)
    assert pruned(files, NOON_S + 900 * DAY_S) == []


def test_a_head_of_another_key_is_not_gone_on_with_silently(
    files: AuditFiles, identity: GatewayIdentity
) -> None:
    other = GatewayIdentity(generate_key())
    append(AuditFiles(files.directory, lambda: other), entries(2), NOON_S)
    append(files, entries(1), NOON_S)
    assert kinds(files.directory) == ["segment", "test", "test", "head_lost", "test"]
    (finding,) = verified(files, identity).findings
    assert "another key signed it" in finding


def test_a_key_that_the_gateway_had_before_is_gone_on_with(
    files: AuditFiles, identity: GatewayIdentity
) -> None:
    before = GatewayIdentity(generate_key())
    append(AuditFiles(files.directory, lambda: before), entries(2), NOON_S)
    with files.held(NOON_S, lambda: [before.public_key]) as appender:
        appender.append(entries(1), NOON_S)
    assert kinds(files.directory) == ["segment", "test", "test", "test"]
    assert not verified(files, identity).findings


@pytest.mark.parametrize("what", ["x" * 70_000, 2**70, "\ud800"])
def test_a_record_that_is_no_line_becomes_one_that_says_less(files: AuditFiles, what: object) -> None:
    who, many = "key:k1", dict.fromkeys(map(str, range(1000)), "y" * 500)
    append(files, [AuditEntry(NOON_S, "test", {"who": who, "share": 0.5, "what": what, **many})], NOON_S)
    last = records(files.directory)[-1]
    assert (last["who"], last["share"], last["shortened"], "what" in last) == (who, 0.5, True, False)
    assert only_segment(files).stat().st_size < 2 * LINE_BYTES


def test_a_crash_before_old_segments_were_deleted_leaves_a_log_that_verifies(
    tmp_path: Path, identity: GatewayIdentity
) -> None:
    files = AuditFiles(tmp_path / "audit", lambda: identity, Retention(days=1))
    for day in range(4):
        append(files, entries(1), NOON_S + day * DAY_S)
    first, second = ((files.directory / name).read_bytes() for name in segment_names(files.directory)[:2])
    gone = pruned(files, NOON_S + 3 * DAY_S)
    (files.directory / gone[1]).write_bytes(second)
    assert not verified(files, identity).findings, "one of them was deleted"
    (files.directory / gone[0]).write_bytes(first)
    assert not verified(files, identity).findings, "none was deleted"
    assert pruned(files, NOON_S + 3 * DAY_S) == gone


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files in another's directory")
def test_what_root_appends_belongs_to_the_owner_of_the_state(
    tmp_path: Path, identity: GatewayIdentity
) -> None:
    os.chown(tmp_path, 12345, 12345)
    files = AuditFiles(tmp_path / "audit", lambda: identity)
    append(files, entries(1), NOON_S)
    append(files, entries(1), NOON_S + DAY_S)
    owners = {each.name: each.stat().st_uid for each in (files.directory, *files.directory.iterdir())}
    assert set(owners.values()) == {12345}, owners


@pytest.mark.parametrize("name", [f"{HEAD}.new", "2026-11-21.0001.jsonl"])
def test_nothing_is_written_where_a_link_leads_to(
    tmp_path: Path, identity: GatewayIdentity, name: str
) -> None:
    files, elsewhere = AuditFiles(tmp_path / "audit", lambda: identity), tmp_path / "elsewhere"
    append(files, entries(1), NOON_S)
    elsewhere.write_bytes(b"somebody else's\n" * 100)
    (files.directory / name).unlink(missing_ok=True)
    (files.directory / name).symlink_to(elsewhere)
    with pytest.raises(AuditUnwritable):
        append(files, entries(1), NOON_S)
    assert elsewhere.read_bytes() == b"somebody else's\n" * 100


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_crash_at_any_byte_loses_nothing_acknowledged_and_the_log_goes_on_and_verifies(
    tmp_path: Path, identity: GatewayIdentity, data: st.DataObject
) -> None:
    directory = Path(tempfile.mkdtemp(dir=tmp_path)) / "audit"
    files = AuditFiles(directory, lambda: identity, Retention(segment_bytes=900))
    acknowledged = 0
    for batch in range(data.draw(st.integers(1, 5))):
        before = {each.name: each.stat().st_size for each in directory.glob("*.jsonl")}
        head = (directory / HEAD).read_bytes() if before else None
        append(files, [AuditEntry(NOON_S, "test", {"batch": batch})] * data.draw(st.integers(1, 4)), NOON_S)
        if data.draw(st.booleans()) or head is None:
            acknowledged += 1
            continue
        (directory / HEAD).write_bytes(head)
        last = directory / segment_names(directory)[-1]
        least = before.get(last.name, 0)
        os.truncate(last, data.draw(st.integers(least, last.stat().st_size)))
        assert verified(files, identity).findings == []
    append(files, entries(1), NOON_S)
    report = verified(files, identity)
    assert report.findings == []
    assert len({record["batch"] for record in records(directory) if "batch" in record}) >= acknowledged
