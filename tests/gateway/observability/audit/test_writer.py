"""The writer: batches, a full disk, a full buffer, and what of it requests are told."""

import pytest
from structlog.testing import capture_logs

from gateway.domain.quotas import Price
from gateway.domain.request import Tier
from gateway.observability.audit import AuditFiles, AuditUnwritable, RequestFacts, Retention, verify
from gateway.observability.audit.records import PIECE_RECORDS, AuditEntry
from gateway.observability.audit.segments import DIRECTORY
from gateway.observability.audit.writer import AuditSettings, AuditWriter, audit_writer
from gateway.storage import Store
from gateway.storage.errors import StateBusy
from shared.identity import GatewayIdentity
from shared.protocol.messages import Usage
from tests.gateway.observability.audit.logs import DAY_S, NOON_S, append, kinds, records, verified


class Things:
    """Stands for the store's acts; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.version = 1

    def pending(self, most: int) -> tuple[()]:
        self.asked += 1
        return ()

    def forget(self, ids: object) -> None: ...
    def signer(self) -> None: ...
    def note_signer(self, public_key: bytes) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now_s = NOON_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def things() -> Things:
    return Things()


def writer_of(
    files: AuditFiles,
    things: Things,
    clock: Clock | None = None,
    *,
    steady: Clock | None = None,
    **settings: float,
) -> AuditWriter:
    """``clock`` is the time of day, and passes as it does for everybody unless another one is ``steady``."""
    chosen, wall = AuditSettings(**settings), clock or Clock()  # type: ignore[arg-type]
    return AuditWriter(files, things, chosen, changed=lambda: things.version, wall=wall, clock=steady or wall)


def refuse(files: AuditFiles, patch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise AuditUnwritable("the disk is full")

    patch.setattr(files, "held", full)


def facts(number: int = 0, **other: object) -> RequestFacts:
    plain: dict[str, object] = {
        "at_s": NOON_S,
        "id": f"req-{number}",
        "status": 200,
        "error": None,
        "key_id": "key_1",
        "tenant": "t",
        "route": "chat",
        "model": "m",
        "alias": None,
        "target": "",
        "version": "v1",
        "tier": Tier.STANDARD,
        "deployments": ["gpu-1/0", "gpu-2/0"],
        "troubles": [("gpu-1/0", "stalled")],
        "queue_s": 0.0105,
        "first_byte_s": 0.1,
        "total_s": 2.0,
        "usage": Usage(10, 20, 4),
        "gpu_s": 1.5,
        "price": Price(1.0, 2.0, 0.1),
    }
    return RequestFacts(**(plain | other))  # type: ignore[arg-type]


def test_a_request_becomes_a_line_of_facts(files: AuditFiles, things: Things) -> None:
    writer = writer_of(files, things)
    writer.add(facts())
    assert writer.write()
    line = records(files.directory)[1]
    for name in ("seq", "prev"):
        del line[name]
    assert line == {
        "at": "2026-11-21T12:00:00.000Z",
        "kind": "request",
        "id": "req-0",
        "who": "key:key_1",
        "tenant": "t",
        "status": 200,
        "route": "chat",
        "model": "m",
        "version": "v1",
        "tier": "standard",
        "queue_ms": 10.5,
        "first_byte_ms": 100.0,
        "total_ms": 2000.0,
        "gpu_s": 1.5,
        "cost": 0.15005,
        "ran": ["gpu-1/0", "gpu-2/0"],
        "why_not": ["stalled", ""],
        "tokens_in": 10,
        "tokens_out": 20,
        "tokens_cached": 4,
    }


def test_a_deployment_that_got_a_request_twice_is_told_twice(files: AuditFiles, things: Things) -> None:
    writer = writer_of(files, things)
    writer.add(facts(deployments=["a/0", "b/0", "a/0"], troubles=[("a/0", "busy"), ("b/0", "broken")]))
    writer.write()
    line = records(files.directory)[1]
    assert (line["ran"], line["why_not"]) == (["a/0", "b/0", "a/0"], ["busy", "broken", ""])


def test_records_are_written_in_batches_in_their_order(
    files: AuditFiles, things: Things, identity: GatewayIdentity
) -> None:
    writer = writer_of(files, things, batch_records=10)
    for number in range(25):
        writer.add(facts(number))
    assert writer.write()
    assert [record["id"] for record in records(files.directory)[1:]] == [f"req-{n}" for n in range(25)]
    assert not verified(files, identity).findings
    assert writer.written == 25


def test_the_thread_rests_between_pieces_of_its_work_unless_it_is_to_stop(
    files: AuditFiles, things: Things, identity: GatewayIdentity
) -> None:
    rests: list[float] = []
    writer = AuditWriter(files, things, wall=Clock(), clock=Clock(), sleep=rests.append)
    few_records = 5
    for number in range(few_records):
        writer.add(facts(number))
    assert writer.write()
    few = len(rests)
    assert few > 2, "the database and the files are pieces, too"
    for number in range(3 * PIECE_RECORDS):
        writer.add(facts(few_records + number))
    assert writer.write()
    assert len(rests) == few + few + 2, "after each piece of lines but the last"
    writer.start()
    writer.stop(10.0)
    rests.clear()
    writer.add(facts(1_000))
    assert writer.write()
    assert rests == []
    assert not verified(files, identity).findings
    assert writer.written == few_records + 3 * PIECE_RECORDS + 1


def test_what_happens_while_the_log_is_written_waits_for_the_next_time(
    files: AuditFiles, things: Things
) -> None:
    writer = writer_of(files, things, batch_records=2)

    def meanwhile(most: int) -> tuple[()]:
        things.asked += 1
        assert things.asked < 100, "the log is written without an end"
        things.version += 1
        writer.add(facts(number=100 + things.asked))
        return ()

    things.pending = meanwhile  # type: ignore[method-assign]
    for number in range(5):
        writer.add(facts(number))
    assert writer.write()
    assert (things.asked, writer.written) == (3, 6), "three batches; the third had room for one more"
    assert writer.write()
    assert (things.asked, writer.written) == (4, 8)


def test_nothing_is_asked_or_written_while_nothing_happens(files: AuditFiles, things: Things) -> None:
    writer = writer_of(files, things)
    for _ in range(3):
        assert writer.write()
    assert things.asked == 1
    things.version += 1
    writer.write()
    assert things.asked == 2
    assert kinds(files.directory) == []


def test_what_cannot_be_written_is_kept_and_written_later_and_is_said_in_between(
    files: AuditFiles, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(files, things)
    with monkeypatch.context() as patch:
        refuse(files, patch)
        writer.add(facts(1))
        assert not writer.write()
        writer.add(facts(2))
        assert not writer.write()
        assert writer.blocked
    assert writer.write()
    assert not writer.blocked
    assert [record.get("id") for record in records(files.directory)] == [None, "req-1", "req-2"]


def test_requests_are_written_though_the_database_does_not_even_say_whether_it_changed(
    files: AuditFiles, things: Things
) -> None:
    def fail() -> int:
        raise StateBusy("just now")

    writer = AuditWriter(files, things, changed=fail, wall=Clock())
    writer.add(facts(1))
    assert writer.write()
    assert kinds(files.directory) == ["segment", "request"]


def test_what_finds_no_room_is_counted_and_the_log_says_how_many(
    files: AuditFiles, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(files, things, buffer_records=3, batch_records=2)
    with monkeypatch.context() as patch:
        refuse(files, patch)
        for number in range(10):
            writer.add(facts(number))
        assert not writer.write()
        assert (writer.dropped, writer.blocked) == (7, True)
    assert writer.write()
    assert kinds(files.directory) == ["segment", "lost", "request", "request", "request"]
    assert records(files.directory)[1]["records"] == 7
    writer.add(facts(99))
    writer.write()
    assert kinds(files.directory).count("lost") == 1


def test_old_segments_are_deleted_once_an_hour(
    files: AuditFiles, things: Things, identity: GatewayIdentity
) -> None:
    clock = Clock()
    writer = writer_of(files, things, clock)
    writer.add(facts())
    writer.write()
    writer._prune()
    clock.now_s += 500 * DAY_S
    writer.note("gateway.start")
    writer.write()
    writer._prune()
    assert kinds(files.directory) == ["segment", "gateway.start", "pruned"]
    assert not verified(files, identity).findings


def test_a_clock_that_is_set_ahead_makes_no_segment_old(
    files: AuditFiles, things: Things, identity: GatewayIdentity
) -> None:
    wall, steady = Clock(), Clock()
    writer = writer_of(files, things, wall, steady=steady)
    for days_ahead in (0, 800, 0):
        wall.now_s = NOON_S + days_ahead * DAY_S
        steady.now_s += 7200.0
        writer.note("gateway.start")
        writer.write()
        writer._prune()
    assert "pruned" not in kinds(files.directory)
    assert kinds(files.directory).count("gateway.start") == 3
    wall.now_s = steady.now_s = NOON_S + 500 * DAY_S
    writer._prune()
    assert "pruned" in kinds(files.directory), "so much time has really passed"
    assert not verified(files, identity).findings


def started(files: AuditFiles, things: Things, wall: Clock, *, hours: int = 0) -> None:
    """A gateway that starts at that time of day and runs for some hours."""
    steady = Clock()
    writer = writer_of(files, things, wall, steady=steady)
    writer.note("gateway.start")
    writer.write()
    for _ in range(hours + 1):
        writer._prune()
        wall.now_s += 3600
        steady.now_s += 3600
        writer.write()


def first_segment_is_there(files: AuditFiles) -> bool:
    return bool(records(files.directory)[0]["seq"] == 1)


def test_no_start_with_a_clock_ahead_makes_a_segment_old(
    files: AuditFiles, things: Things, identity: GatewayIdentity
) -> None:
    append(files, [AuditEntry(NOON_S, "test", {})], NOON_S)  # by an earlier release
    wall = Clock()
    for _ in range(3):
        wall.now_s = NOON_S + 800 * DAY_S
        started(files, things, wall, hours=30)
    wall.now_s = NOON_S + 2 * DAY_S
    started(files, things, wall, hours=3)
    wall.now_s = NOON_S + 500 * DAY_S  # and another time
    started(files, things, wall, hours=30)
    assert "pruned" not in kinds(files.directory)
    assert first_segment_is_there(files)
    assert not verified(files, identity).findings


def test_a_time_of_day_is_believed_when_a_gateway_has_run_under_it_for_a_week(
    files: AuditFiles, things: Things, identity: GatewayIdentity
) -> None:
    wall = Clock()
    started(files, things, wall)
    wall.now_s = NOON_S + 500 * DAY_S  # it was off
    with capture_logs() as logs:
        for _ in range(6):
            started(files, things, wall, hours=26)
            assert first_segment_is_there(files)
    assert [line["event"] for line in logs].count("audit_clock_ahead") == 1
    started(files, things, wall, hours=26)
    assert not first_segment_is_there(files)
    assert not verified(files, identity).findings


def test_a_time_that_cannot_be_read_is_that_of_the_newest_line(files: AuditFiles, things: Things) -> None:
    started(files, things, Clock())
    wall = Clock()
    for junk in (b"", b"{}", b"[1]", b'{"time_s":1e300,"ahead_s":0,"ahead_for_s":0}'):
        (files.directory / "time.json").write_bytes(junk)
        wall.now_s = NOON_S + 800 * DAY_S
        assert files.trusted_time(wall.now_s).time_s < NOON_S + DAY_S
    started(files, things, wall)
    assert first_segment_is_there(files)


def test_a_thread_writes_what_is_left_when_it_is_stopped(store: Store, identity: GatewayIdentity) -> None:
    files = AuditFiles(store.state_dir / "audit", lambda: identity)
    writer = AuditWriter(files, store.acts, AuditSettings(tick_s=60), changed=store.changes.read)
    writer.start()
    store.acts.note("thing.change")
    writer.add(facts())
    writer.stop(10)
    assert kinds(files.directory) == ["segment", "thing.change", "request"]


def test_a_gateway_that_stops_on_a_full_disk_tells_how_many_records_are_lost(
    files: AuditFiles, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(files, things, tick_s=60, buffer_records=5, batch_records=2)
    refuse(files, monkeypatch)
    for number in range(9):
        writer.add(facts(number))
    writer.start()
    with capture_logs() as logs:
        writer.stop(10)
    assert [each["records"] for each in logs if each["event"] == "audit_lost"] == [9]


def test_a_record_that_cannot_be_made_a_line_stops_no_other(files: AuditFiles, things: Things) -> None:
    writer = writer_of(files, things)
    writer.add(AuditEntry(NOON_S, "odd", {"what": object()}))
    writer.add(facts())
    assert writer.write()
    assert kinds(files.directory) == ["segment", "odd", "request"]


def test_a_running_gateway_tells_the_store_of_the_logs_head_and_at_its_end(store: Store) -> None:
    writer = audit_writer(store, AuditSettings(tick_s=0.01), Retention())
    writer.start()
    for _ in range(3):
        writer.note("thing.change")
    writer.stop(10.0)
    head = store.audit_heads.get(store.audit_chain)
    report = verify(store.state_dir / DIRECTORY, [store.gateway_identity.public_key])
    assert head is not None
    assert (head.seq, head.hash) == (report.last_seq, report.last_hash)
