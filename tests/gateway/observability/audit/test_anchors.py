"""The store knows the head of the log, and takes no later one whose log is another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.observability.audit import AuditFiles, anchors
from gateway.observability.audit.anchors import EVERY_S, HeadAnchor, line_before
from gateway.observability.audit.records import ChainHead, hash_of
from gateway.observability.audit.segments import segment_names
from gateway.storage.audit_heads import AuditHead
from gateway.storage.errors import StateBusy
from shared.identity import GatewayIdentity, generate_key
from tests.gateway.observability.audit.logs import DAY_S, NOON_S, append, entries


class Heads:
    """Stands for the store's; may fail."""

    def __init__(self) -> None:
        self.head: AuditHead | None = None
        self.failing = False
        self.noted = 0

    def get(self, chain: str) -> AuditHead | None:
        if self.failing:
            raise StateBusy("just now")
        return self.head

    def note(self, head: AuditHead) -> None:
        self.noted += 1
        self.head = head


class Log:
    """A log that is appended to, and its anchor under a manual clock."""

    def __init__(self, files: AuditFiles) -> None:
        self.files = files
        self.heads = Heads()
        self.now_s = 100.0
        self.anchor = HeadAnchor(self.heads, "a", files.directory, clock=lambda: self.now_s)

    def append(self, count: int = 1, *, day: int = 0, kind: str = "test") -> ChainHead:
        at_s = NOON_S + day * DAY_S
        head = append(self.files, entries(count, kind=kind), at_s)
        self.anchor.appended(head)
        return head

    def pass_time(self, seconds: float = EVERY_S) -> None:
        self.now_s += seconds
        self.anchor.note(NOON_S)

    @property
    def known(self) -> tuple[int, str]:
        assert self.heads.head is not None
        return self.heads.head.seq, self.heads.head.hash


@pytest.fixture
def log(files: AuditFiles) -> Log:
    return Log(files)


def test_the_head_is_noted_now_and_then_while_there_are_new_lines_and_at_the_end(log: Log) -> None:
    first = log.append()
    log.pass_time(0.0)
    assert log.known == (first.seq, first.hash)
    second = log.append()
    log.pass_time(EVERY_S / 2)
    assert log.known == (first.seq, first.hash), "not at each line"
    log.pass_time(EVERY_S / 2)
    assert log.known == (second.seq, second.hash)
    log.pass_time()
    assert log.heads.noted == 2, "nothing is new"
    third = log.append()
    log.anchor.note(NOON_S, at_once=True)
    assert log.known == (third.seq, third.hash)


def test_while_the_store_fails_the_head_waits_and_that_is_logged_once(log: Log) -> None:
    log.heads.failing = True
    head = log.append()
    with capture_logs() as lines:
        log.pass_time()
        log.pass_time()
    assert [line["event"] for line in lines] == ["audit_head_not_noted"]
    log.heads.failing = False
    log.pass_time()
    assert log.known == (head.seq, head.hash)


def test_a_log_that_was_written_anew_never_takes_the_place_of_the_one_that_is_known(
    log: Log,
) -> None:
    log.append(5)
    log.pass_time()
    known = log.known
    for path in log.files.directory.iterdir():
        path.unlink()
    with capture_logs() as lines:
        for _ in range(3):
            log.append(9, kind="other")  # with the gateway's own key, and longer
            log.pass_time()
    assert log.known == known
    assert [line["event"] for line in lines] == ["audit_log_broken"]
    assert lines[0]["line"] == known[0]
    log.heads.head = None  # an operator has it forgotten
    head = log.append()
    log.pass_time()
    assert log.known == (head.seq, head.hash)


def test_a_log_that_was_cut_short_is_noticed_before_it_has_grown_again(log: Log) -> None:
    log.append(5)
    log.pass_time()
    known = log.known
    for path in log.files.directory.iterdir():
        path.unlink()
    log.append(1)
    with capture_logs() as lines:
        log.pass_time()
    assert (log.known, lines[0]["event"]) == (known, "audit_log_broken")


def test_what_another_process_noted_behind_our_lines_is_in_order(log: Log) -> None:
    ours = log.append()
    theirs = append(log.files, entries(3), NOON_S + DAY_S)
    log.heads.head = AuditHead("a", theirs.seq, theirs.hash, NOON_S, "h")
    log.anchor.appended(ours)
    with capture_logs() as lines:
        log.pass_time()
    assert lines == []


def test_lines_that_were_deleted_with_their_segment_are_not_missed(log: Log) -> None:
    log.append()
    log.pass_time()
    last = log.append(day=2)
    (log.files.directory / segment_names(log.files.directory)[0]).unlink()
    log.pass_time()
    assert log.known == (last.seq, last.hash)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(1, 600), st.data())
def test_any_line_is_found_from_the_end_whatever_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, days: list[int], block_bytes: int, data: st.DataObject
) -> None:
    identity = GatewayIdentity(generate_key())
    files = AuditFiles(tmp_path_factory.mktemp("log") / "audit", lambda: identity)
    head = ChainHead()
    for day, count in enumerate(days):
        head = append(files, entries(count), NOON_S + day * DAY_S)
    lines = [
        line
        for name in segment_names(files.directory)
        for line in (files.directory / name).read_bytes().splitlines()
    ]
    back = data.draw(st.integers(0, len(lines) + 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchors, "_BLOCK_BYTES", block_bytes)
        found = line_before(files.directory, head, back)
    assert found == (lines[-1 - back] if back < len(lines) else None)
    if back == 0:
        assert found is not None
        assert hash_of(found) == head.hash
