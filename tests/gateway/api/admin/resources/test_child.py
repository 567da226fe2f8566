"""An operation in a process of its own: its answer, its errors, and its end."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from gateway.api.admin.resources import child
from gateway.api.admin.resources.child import run_in_child
from gateway.domain.store_address import StoreAddress
from gateway.observability.audit import append_pending_acts
from gateway.observability.audit.acts import append_entries, audit_files
from gateway.storage import Store
from gateway.storage.errors import BadValue, StateError, StateUnwritable


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "state") as store:
        store.keys.create("alice", "acme", 1.0)
        append_pending_acts(store)
    return tmp_path / "state"


async def test_it_answers_as_it_does_here_also_where_the_directory_has_a_package_of_its_name(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    found = await run_in_child(state, "verify_audit", {})
    assert (found["sound"], found["lines"]) == (True, 2)


async def test_it_works_on_the_same_server(tmp_path: Path, postgres_address: StoreAddress) -> None:
    with Store.open(tmp_path, address=postgres_address, serve=True) as store:
        store.keys.create("alice", "acme", 1.0)
        append_entries(audit_files(store), store.acts, time.time())
    found = await run_in_child(tmp_path, "verify_audit", {}, postgres_address)
    assert (found["sound"], found["lines"]) == (True, 2)
    away = StoreAddress("postgresql://u:s3cret@127.0.0.1:1/d", tmp_path / "k")
    with pytest.raises(StateError, match=r"cannot reach PostgreSQL at 127\.0\.0\.1:1"):
        await run_in_child(tmp_path, "verify_audit", {}, away)


async def test_what_is_refused_there_is_refused_here(state: Path, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="after is what"):
        await run_in_child(state, "export_audit", {"after": "x"})
    with pytest.raises(StateError):
        await run_in_child(tmp_path / "none", "verify_audit", {})


@pytest.mark.parametrize("command", [(sys.executable, "-c", "raise SystemExit(3)"), ("/nonexistent",)])
async def test_a_process_that_fails_is_told(
    state: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(child, "CHILD", command)
    with pytest.raises(StateUnwritable):
        await run_in_child(state, "verify_audit", {})


async def test_the_process_ends_with_who_waits_for_it(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    program = f"import os, time; open({str(pipe)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    monkeypatch.setattr(child, "CHILD", (sys.executable, "-c", program))
    waiting = asyncio.create_task(run_in_child(state, "verify_audit", {}))
    pid = int(await asyncio.to_thread(pipe.read_text))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_it_does_not_take_for_ever(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "CHILD", (sys.executable, "-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(child, "LONGEST_S", 0.01)
    with pytest.raises(StateUnwritable, match=r"longer than 0\.01 s"):
        await run_in_child(state, "verify_audit", {})
