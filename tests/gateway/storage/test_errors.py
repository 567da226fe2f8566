"""What the errors of the durable state say to do."""

import errno
import os
from pathlib import Path

import pytest

from gateway.storage.errors import StateUnwritable


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "run as the user that owns the state directory"),
        (errno.EROFS, "make its file system writable again"),
        (errno.ENOSPC, "make room and try again"),
    ],
)
def test_a_file_that_cannot_be_opened_is_told_with_what_to_do(number: int, advice: str) -> None:
    told = str(StateUnwritable.opening(Path("gateway.db"), OSError(number, os.strerror(number))))
    assert told.startswith(f"cannot open gateway.db ({os.strerror(number)}): ")
    assert advice in told
