"""``trunkline audit``, as scripts and people use it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli import audit as cli_audit
from gateway.cli import resources as cli_resources
from gateway.observability.audit import AuditUnwritable, audit_files
from gateway.observability.audit.records import AuditEntry
from gateway.storage import Store
from tests.gateway.observability.audit.logs import DAY_S, NOON_S, append

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    app = typer.Typer()
    cli_audit.register(app)
    cli_resources.register(app)
    monkeypatch.setenv("TRUNKLINE_STATE", str(tmp_path))
    monkeypatch.setenv("TERM", "dumb")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


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
