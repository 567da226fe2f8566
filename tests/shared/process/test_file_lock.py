"""A lock on a file: alone or shared, with its holder's name, gone with its process."""

import os
import platform
from pathlib import Path

import pytest

from shared.process.file_lock import FileLock, LockHolder


def test_one_has_it_alone_or_many_share_it(tmp_path: Path) -> None:
    one, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert one.try_take(exclusive=True)
    assert not other.try_take(exclusive=True)
    assert not other.try_take(exclusive=False)
    assert one.try_take(exclusive=False)
    assert other.try_take(exclusive=False)
    assert not other.try_take(exclusive=True)
    one.close()
    assert other.try_take(exclusive=True)
    one.close()
    other.close()


def test_who_has_it_is_written_in_it_whatever_was_there(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("1234567890\nanother host with a long name\n")
    one, other = FileLock(path), FileLock(path, create=False)
    assert one.try_take(exclusive=True)
    one.sign()
    assert other.holder() == LockHolder(os.getpid(), platform.node())
    assert str(other.holder()) == f"process {os.getpid()} on {platform.node()}"
    one.close()
    other.close()


@pytest.mark.parametrize("content", [b"", b"x\ny\n", b"17", b"\xff\xfe\n\xff\n", b"9" * 5000])
def test_a_file_that_says_nothing_of_its_holder_is_no_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    lock = FileLock(tmp_path / "lock")
    assert str(lock.holder()) == "another process"
    lock.close()


def test_a_link_is_not_followed_and_a_missing_file_is_not_made_unasked(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"symbolic link"):
        FileLock(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "none", create=False)
    assert list(tmp_path.iterdir()) == [tmp_path / "link"]
