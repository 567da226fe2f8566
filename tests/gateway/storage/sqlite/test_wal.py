import sqlite3
import threading
from pathlib import Path

import pytest

from gateway.storage.sqlite.wal import enter_wal


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
