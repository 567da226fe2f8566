"""What is written to the file comes back as it was, or not at all."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.dispatch.response_buffers.file import (
    BLOCK_BYTES,
    LEFT_FREE_BYTES,
    PAYLOAD_BYTES,
    Extent,
    NoDiskSpace,
    SpillFile,
)

SECRET = b"what was answered " * 1000


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SpillFile]:
    opened = SpillFile(tmp_path)
    yield opened
    opened.close()


def extent(size_bytes: int, blocks: list[int], serial: int = 0) -> Extent:
    return Extent(blocks, serial, size_bytes)


def test_bytes_come_back_in_order_wherever_their_blocks_are(file: SpillFile) -> None:
    data = os.urandom(3 * PAYLOAD_BYTES + 5)
    first, second = extent(2 * PAYLOAD_BYTES, [7, 2]), extent(PAYLOAD_BYTES + 5, [3, 0], serial=2)
    file.write([first, second], [data[:100], data[100:]])
    assert file.read(second) == data[2 * PAYLOAD_BYTES :]
    assert file.read(first) == data[: 2 * PAYLOAD_BYTES]


def test_nobody_finds_the_file_nor_what_is_in_it(file: SpillFile, tmp_path: Path) -> None:
    file.write([extent(len(SECRET), [0, 1])], [SECRET])
    assert list(tmp_path.iterdir()) == []
    raw = os.pread(file._descriptor, 2 * BLOCK_BYTES, 0)
    assert len(raw) > len(SECRET)
    assert SECRET[:18] not in raw


def test_a_block_that_is_another_than_was_written_is_not_taken_for_it(file: SpillFile) -> None:
    old, new = extent(10, [0], serial=0), extent(10, [0], serial=1)
    file.write([old], [b"0123456789"])
    file.write([new], [b"abcdefghij"])
    assert file.read(new) == b"abcdefghij"
    with pytest.raises(OSError, match="not what was written"):
        file.read(old)
    (third,) = os.pread(file._descriptor, 1, 3)
    os.pwrite(file._descriptor, bytes([third ^ 1]), 3)
    with pytest.raises(OSError, match="not what was written"):
        file.read(new)


def test_a_disk_is_not_filled(file: SpillFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write([extent(1, [0])], [b"x"])
    real = os.fstatvfs(file._descriptor)
    free_blocks = LEFT_FREE_BYTES // real.f_frsize + 8
    few = os.statvfs_result((*real[:2], 4 * free_blocks, *real[3:4], free_blocks, *real[5:]))
    monkeypatch.setattr(os, "fstatvfs", lambda _: few)
    file.write([extent(1, [1])], [b"x"])
    with pytest.raises(NoDiskSpace):
        file.write([extent(1, [100], serial=1)], [b"x"])
    file.write([extent(1, [0], serial=2)], [b"y"])
    assert file.read(extent(1, [0], serial=2)) == b"y", "what it has it may use"


def test_a_write_that_is_cut_short_is_an_error(file: SpillFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: len(data) - 1)
    with pytest.raises(NoDiskSpace):
        file.write([extent(1, [0])], [b"x"])
