"""``trunkline audit``, as scripts and people use it."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from gateway.cli import audit as cli_audit
from gateway.observability.audit import AuditUnwritable, Retention, audit_files
from gateway.observability.audit.records import AuditEntry
from gateway.storage import Store
from gateway.storage.audit_heads import AuditHead
from tests.gateway.cli.command_line import Run, running
from tests.gateway.observability.audit.logs import DAY_S, NOON_S, append


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return running(tmp_path, monkeypatch, cli_audit.register)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three days with a request and an act each; the only segment of the last day."""
    with Store.open(tmp_path) as store:
        for day in range(3):
            at_s = NOON_S + day * DAY_S
            entries = [
                AuditEntry(at_s, "request", {"id": f"r{day}"}),
                AuditEntry(at_s, "key.create", {"name": f"k{day}"}),
            ]
            append(audit_files(store), entries, at_s)
    return tmp_path / "audit" / "2026-11-23.0001.jsonl"


def test_a_sound_log_verifies_and_its_end_is_printed(run: Run, log: Path) -> None:
    result = run("audit", "verify")
    assert result.exit_code == 0
    seq, _, digest = result.stdout.strip().partition(":")
    assert (seq, len(digest)) == ("9", 64)
    assert "lines: 9 (1 to 9), segments: 3: nothing was tampered with." in result.stderr


def test_a_changed_line_is_told_and_ends_with_1(run: Run, log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b'"r2"', b'"rX"'))
    result = run("audit", "verify")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "WRONG: 2026-11-23.0001.jsonl line 3: line 8 was changed" in result.stderr
    report = json.loads(run("audit", "verify", "--json").stdout)
    assert (report["sound"], len(report["findings"]), report["lines"]) == (False, 1, 9)


def test_a_log_that_was_exchanged_is_told_by_an_end_that_was_kept(run: Run, log: Path) -> None:
    end = run("audit", "verify").stdout.strip()
    assert run("audit", "verify", "--expect", end).exit_code == 0
    other = end[:-1] + ("0" if end[-1] != "0" else "1")
    result = run("audit", "verify", "--expect", other)
    assert result.exit_code == 1
    assert "line 9 is not the one that was written down" in result.stderr
    for none in ("nine", f"{'9' * 5000}:{'0' * 64}"):
        assert run("audit", "verify", "--expect", none).exit_code == 2


def test_where_there_is_no_log_nothing_is_sound(run: Run, tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    result = run("audit", "verify")
    assert result.exit_code == 1
    assert result.stderr.startswith("trunkline: there is no audit log in ")


def exported(result: Result) -> list[str]:
    assert result.exit_code == 0
    return [record.get("id") or record["name"] for record in map(json.loads, result.stdout.splitlines())]


def test_the_log_is_exported_line_by_line_as_it_is(run: Run, log: Path) -> None:
    text = run("audit", "export").stdout
    whole = "".join(path.read_text() for path in sorted(log.parent.glob("*.jsonl")))
    assert text == whole
    log.write_bytes(log.read_bytes() + b"no record\n{}\ntorn")
    assert run("audit", "export").stdout == whole


def test_export_since_a_moment_and_of_kinds(run: Run, log: Path) -> None:
    acts = ("--kind", "key.revoke", "--kind", "key.create")
    assert exported(run("audit", "export", *acts)) == ["k0", "k1", "k2"]
    assert exported(run("audit", "export", "--since", "2026-11-22", "--kind", "key.")) == ["k1", "k2"]
    moment = "2026-11-22T13:00:00+01:00"
    assert exported(run("audit", "export", "--since", moment, "--kind", "request")) == ["r1", "r2"]
    assert exported(run("audit", "export", "--since", "2026-11-22T12:00:01", "--kind", "key.")) == ["k2"]


def test_export_for_a_while_until_now_and_for_no_time_at_all(run: Run, tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        append(audit_files(store), [AuditEntry(DAY_S, "key.create", {"name": "long ago"})], DAY_S)
    run("key", "create", "--name", "fresh")
    assert exported(run("audit", "export", "--since", "1h", "--kind", "key.")) == ["fresh"]
    assert exported(run("audit", "export", "--since", "999999999w", "--kind", "key.")) == [
        "long ago",
        "fresh",
    ]
    for none in ("soon", "0001-01-01T00:00+23:59"):
        assert run("audit", "export", "--since", none).exit_code == 2


def test_a_command_that_changes_something_is_in_the_log_when_it_is_done(run: Run) -> None:
    key = run("key", "create", "--name", "alice", "--tenant", "acme").stdout.strip()
    run("key", "revoke", "alice")
    text = run("audit", "export", "--kind", "key.").stdout
    created, revoked = map(json.loads, text.splitlines())
    assert (created["kind"], created["name"], created["tenant"]) == ("key.create", "alice", "acme")
    assert (revoked["kind"], revoked["key"], revoked["who"][:3]) == ("key.revoke", created["key"], "os:")
    assert key[6:] not in text
    assert run("audit", "verify").exit_code == 0


def test_a_command_is_done_though_the_log_cannot_be_written_and_is_in_it_later(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise AuditUnwritable("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("gateway.observability.audit.files.AuditFiles.held", full)
        result = run("key", "create", "--name", "alice")
    assert result.exit_code == 0
    assert "this is done; the audit log will have it as soon as it can be written" in result.stderr
    run("key", "create", "--name", "bob")
    assert exported(run("audit", "export", "--kind", "key.")) == ["alice", "bob"]


def test_a_log_is_held_against_the_line_that_the_store_knows_and_other_logs_are_named(
    run: Run, log: Path, tmp_path: Path
) -> None:
    report = json.loads(run("audit", "verify", "--json").stdout)
    assert (report["chain"], report["anchored"], report["elsewhere"]) == ("gateway", None, [])
    seq, _, digest = report["end"].partition(":")
    other = AuditHead("gateway2-5f0c", 1200, "cd" * 32, NOON_S, "host-2")
    with Store.open(tmp_path) as store:
        store.audit_heads.note(AuditHead("gateway", int(seq), digest, NOON_S, "host-1"))
        store.audit_heads.note(other)
    result = run("audit", "verify")
    assert result.exit_code == 0
    assert "the store knows line 9 of this log, gateway" in result.stderr
    said = "not read: the log gateway2-5f0c on host-2, which had line 1200 at 2026-11-21 12:00 UTC"
    assert said in result.stderr.replace("\n", " ")

    for path in log.parent.iterdir():
        path.unlink()
    with Store.open(tmp_path) as store:  # with the gateway's own key, so that the log alone is sound
        append(audit_files(store), [AuditEntry(NOON_S, "key.create", {"name": "forged"})] * 20, NOON_S)
    result = run("audit", "verify")
    assert result.exit_code == 1
    assert "line 9 is not the one that the store has known since 2026-11-21T12:00:00.000Z" in result.stderr
    with Store.open(tmp_path) as store:
        for path in log.parent.iterdir():
            path.unlink()
        append(audit_files(store), [AuditEntry(NOON_S, "key.create", {"name": "forged"})], NOON_S)
    assert "line 9, which the store has known since" in run("audit", "verify").stderr

    assert run("audit", "forget-head", "nobody").exit_code == 1
    forgotten = run("audit", "forget-head", "gateway")
    assert f"it was 9:{digest}" in forgotten.stderr
    assert run("audit", "verify").exit_code == 0
    assert "audit.forget_head" in run("audit", "export", "--kind", "audit.").stdout


def test_a_line_that_was_deleted_in_order_is_not_held_against_the_log(run: Run, tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        files = audit_files(store, Retention(days=1))
        head = append(files, [AuditEntry(NOON_S, "x", {})], NOON_S)
        store.audit_heads.note(AuditHead("gateway", head.seq, head.hash, NOON_S, "host-1"))
        append(files, [AuditEntry(NOON_S, "x", {})], NOON_S + 5 * DAY_S)
        with files.held(NOON_S) as appender:
            assert appender.prune(NOON_S + 5 * DAY_S)
    result = run("audit", "verify")
    assert result.exit_code == 0
    assert "note: line 2, which the store has known since" in result.stderr
