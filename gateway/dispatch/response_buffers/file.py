"""An unnamed temporary file for parts of answers that wait for slow readers, and its free blocks.

Other processes cannot read the contents, and nothing can be read after the process has ended: the file has no
name, and its blocks are encrypted with a key that exists only in this process's memory.
"""

import os
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from threading import Lock
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shared.protocol.limits import KIB, MIB

BLOCK_BYTES = 16 * KIB
"""The file is allocated in blocks of this size."""

EXTENT_BLOCKS = 4
"""Blocks that are read at once, which is as much as a reader takes at once."""

_TAG_BYTES = 16
_NONCE_BYTES = 12

PAYLOAD_BYTES = BLOCK_BYTES - _TAG_BYTES
"""Bytes of data in one block; the rest is the tag that proves that the data is what was written."""

LEFT_FREE_BYTES = 1024 * MIB
LEFT_FREE_PARTS = 20
"""Disk space that is left free: this much, or one part in ``LEFT_FREE_PARTS`` if that is more. Other files,
such as the gateway's own state, may be on the same disk."""


class NoDiskSpace(OSError):
    """The disk has too little free."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of one answer, in order, and where they are. ``serial`` is the first of as many numbers as there
    are blocks, none of which is ever used again."""

    blocks: Sequence[int]
    serial: int
    size_bytes: int


class SpillFile:
    """Blocks of an answer's bytes each. The file is made by the first to write.

    Reading, writing and closing block: they are for worker threads. Two may use it at once, for different
    blocks. All else belongs to the event loop's thread.
    """

    def __init__(self, directory: Path) -> None:
        self.jobs = 0
        """Writes and reads under way."""
        self.used = 0
        """Blocks that are in use."""
        self._free: list[int] = []
        """A heap: the first free ones are used first, so that the file stays short."""
        self._end = 0
        self._serial = 0
        self._directory = directory
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._opening = Lock()
        self._file: IO[bytes] | None = None
        self._blocks = 0
        """Whose place on the disk was asked for."""

    @property
    def closed(self) -> bool:
        """It is not open, or not yet."""
        return self._file is None or self._file.closed

    def allocate(self, count: int, size_bytes: int) -> list[Extent]:
        """So many blocks, for so many bytes."""
        extents = []
        self.used += count
        while count:
            some = min(count, EXTENT_BLOCKS)
            blocks = array("I", (self._block() for _ in range(some)))
            extents.append(Extent(blocks, self._serial, min(size_bytes, some * PAYLOAD_BYTES)))
            self._serial += some
            size_bytes -= extents[-1].size_bytes
            count -= some
        return extents

    def free(self, extent: Extent) -> None:
        for block in extent.blocks:
            heappush(self._free, block)
        self.used -= len(extent.blocks)

    def _block(self) -> int:
        if self._free:
            return heappop(self._free)
        self._end += 1
        return self._end - 1

    def write(self, extents: Sequence[Extent], pieces: Sequence[bytes]) -> None:
        """Write ``pieces``, which are as long together as the extents. Raises OSError."""
        with self._opening:
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115
                    prefix="unread-", dir=self._directory, buffering=0
                )
        data = memoryview(b"".join(pieces))
        self._ask_for_space(1 + max(block for extent in extents for block in extent.blocks))
        at = 0
        for extent in extents:
            end = at + extent.size_bytes
            for number, block in enumerate(extent.blocks):
                payload = data[at : min(end, at + PAYLOAD_BYTES)]
                sealed = self._cipher.encrypt(_nonce(extent.serial + number), payload, None)
                self._write_at(block * BLOCK_BYTES, sealed)
                at += len(payload)

    def read(self, extent: Extent) -> bytes:
        """What was written there. Raises OSError, also when it is not that any more."""
        payloads, left_bytes = [], extent.size_bytes
        for number, block in enumerate(extent.blocks):
            size_bytes = min(left_bytes, PAYLOAD_BYTES) + _TAG_BYTES
            sealed = os.pread(self._descriptor, size_bytes, block * BLOCK_BYTES)
            try:
                payloads.append(self._cipher.decrypt(_nonce(extent.serial + number), sealed, None))
            except InvalidTag as error:
                raise OSError("what was read is not what was written") from error
            left_bytes -= len(payloads[-1])
            self._forget(block)
        return b"".join(payloads)

    def close(self) -> None:
        """Give the disk's space back."""
        if self._file is not None:
            self._file.close()

    @property
    def _descriptor(self) -> int:
        assert self._file is not None
        return self._file.fileno()

    def _forget(self, block: int) -> None:
        """The block is not read again, so the system need not keep it in its page cache."""
        if hasattr(os, "posix_fadvise"):
            where = block * BLOCK_BYTES, BLOCK_BYTES
            os.posix_fadvise(self._descriptor, *where, os.POSIX_FADV_DONTNEED)

    def _write_at(self, offset: int, data: bytes) -> None:
        written = os.pwrite(self._descriptor, data, offset)
        if written < len(data):
            raise NoDiskSpace(f"{written} of {len(data)} bytes were written")

    def _ask_for_space(self, blocks: int) -> None:
        """The file is to have so many. Raises :class:`NoDiskSpace`."""
        if blocks <= self._blocks:
            return
        disk = os.fstatvfs(self._descriptor)
        total_bytes, free_bytes = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        free_bytes -= (blocks - self._blocks) * BLOCK_BYTES
        if free_bytes < max(LEFT_FREE_BYTES, total_bytes // LEFT_FREE_PARTS):
            raise NoDiskSpace("the disk has too little free")
        self._blocks = blocks


def _nonce(serial: int) -> bytes:
    return serial.to_bytes(_NONCE_BYTES, "big")
