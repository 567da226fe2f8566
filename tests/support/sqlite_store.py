"""Databases of SQLite that need not be made from nothing for each of thousands of tests."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.storage.sqlite import database as module
from gateway.storage.sqlite.database import SqliteDatabase


@contextlib.contextmanager
def copied_databases(directory: Path) -> Iterator[None]:
    """Meanwhile a database that is opened where there is no file begins as a copy of an empty one of this
    version, which is made in ``directory`` when it is first needed. What opens it then reads its version and
    enters its log as for any other database."""
    made = directory / "empty.db"
    prepare = module._prepare_file

    def copy(path: Path) -> None:
        if path != made and path.parent.is_dir() and not os.path.lexists(path):
            if not made.exists():
                SqliteDatabase(made).close()
            _write_whole(path, made.read_bytes())
        prepare(path)

    with replaced(copy):
        yield


@contextlib.contextmanager
def replaced(prepare: Callable[[Path], None]) -> Iterator[None]:
    """Meanwhile ``prepare`` makes the file of a database before it is opened."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_prepare_file", prepare)
        yield


def _write_whole(path: Path, data: bytes) -> None:
    """Nobody sees a part of it, and a file that is there by now stays."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    with contextlib.suppress(OSError):  # opening the database then says what is wrong
        try:
            part.write_bytes(data)
            part.chmod(0o600)
            os.link(part, path)
        finally:
            part.unlink(missing_ok=True)
