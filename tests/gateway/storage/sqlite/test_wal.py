import sqlite3
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.storage.sqlite import wal
from gateway.storage.sqlite.wal import begin_writing, enter_wal


def test_many_that_open_a_new_database_at_once_all_have_its_log(tmp_path: Path) -> None:
    path, together = tmp_path / "new.db", threading.Barrier(8)
    modes: list[str] = []

    def opens() -> None:
        connection = sqlite3.connect(path, timeout=10.0)
        together.wait()
        modes.append(enter_wal(connection, 10.0))
        connection.execute("CREATE TABLE IF NOT EXISTS here (number INTEGER)")
        connection.close()

    threads = [threading.Thread(target=opens) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert modes == ["wal"] * 8


def test_it_waits_for_a_writer_that_holds_the_file(tmp_path: Path) -> None:
    path = tmp_path / "held.db"
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.2, holder.rollback)
    release.start()
    waiting = sqlite3.connect(path, timeout=0.0)
    assert enter_wal(waiting, 10.0) == "wal"
    release.join()
    waiting.close()
    holder.close()


def test_after_the_wait_it_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "held.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    waiting = sqlite3.connect(path, timeout=0.0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        enter_wal(waiting, 0.05)
    waiting.close()
    holder.close()


def test_a_database_in_memory_has_no_log() -> None:
    connection = sqlite3.connect(":memory:")
    assert enter_wal(connection, 0.0) == "memory"
    connection.close()


class Taken:
    """A connection to a database whose lock others have, for so many looks, on a clock of its own."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, looks: float, code: int = sqlite3.SQLITE_BUSY
    ) -> None:
        self.left, self.code = looks, code
        self.now_s = 1000.0
        self.pauses_s: list[float] = []
        monkeypatch.setattr(wal, "time", self)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds

    def execute(self, statement: str) -> None:
        assert statement == "BEGIN IMMEDIATE"
        self.left -= 1
        if self.left >= 0:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = self.code
            raise error

    def begin(self, wait_s: float) -> None:
        begin_writing(cast(Any, self), wait_s)


def test_who_waits_to_write_looks_at_short_distances_for_as_long_as_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = Taken(monkeypatch, 1000)
    taken.begin(60.0)
    assert len(taken.pauses_s) == 1000
    assert max(taken.pauses_s) <= 0.004
    assert len(set(taken.pauses_s)) > 900, "two that wait look at different times"


def test_who_has_waited_to_write_for_long_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch, float("inf"))
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        taken.begin(5.0)
    assert 5.0 <= sum(taken.pauses_s) < 5.01


def test_what_else_is_wrong_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch, 1, sqlite3.SQLITE_READONLY)
    with pytest.raises(sqlite3.OperationalError):
        taken.begin(5.0)
    assert taken.pauses_s == []


def test_it_begins_once_the_other_writer_is_done(tmp_path: Path) -> None:
    path = tmp_path / "held.db"
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    enter_wal(holder, 1.0)
    holder.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.2, holder.rollback)
    release.start()
    waiting = sqlite3.connect(path, timeout=0.0, isolation_level=None)
    begin_writing(waiting, 60.0)
    assert waiting.in_transaction
    release.join()
    waiting.close()
    holder.close()
