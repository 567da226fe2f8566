"""Objects on their way between processes: pickled, with large ones in shared memory.

A parcel is a pickle and the buffers of its arrays (pickle protocol 5, out of band). A small parcel goes
inside its message. A large one is a file in a directory of the memory file system (``/dev/shm`` on Linux,
shared memory by another name), written once and mapped by whoever reads it. Files rather than
:mod:`multiprocessing.shared_memory`: a full memory file system is then an error of ``write``, after which the
parcel goes inside its message, where a segment's first access would end the process with SIGBUS.

The server process alone decides when a file is removed, because an item may be computed a second time. A file
belongs to it from the message that names it; those of a process that ended before such a message are found by
their prefix. The directory goes with the server process, whatever ends that.
"""

import importlib
import itertools
import mmap
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

INLINE_BYTES = 32 * 1024
"""A larger parcel becomes a file: below that, two copies through a pipe cost less than a file does."""

_BUFFER_BYTES = 4 * 1024
"""Smaller buffers stay in the pickle."""

_ALIGNMENT = 64
"""Where buffers begin in a parcel, as vector instructions want it."""

_VECTORS = 512
"""Most pieces of one writev(2); POSIX promises 1,024 in practice."""


class Parcel(NamedTuple):
    """``sizes`` are those of its parts, each of which begins at a multiple of 64 bytes."""

    sizes: tuple[int, ...]
    data: bytes = b""
    file: str = ""
    """Empty: it is all in ``data``."""

    @property
    def size_bytes(self) -> int:
        return sum(map(_padded, self.sizes))

    def parts(self) -> list[memoryview]:
        """The parts; of a file writable copies, made where they are written to. Raises OSError."""
        view = self._mapped() if self.file else memoryview(bytearray(self.data))
        found, start = [], 0
        for size in self.sizes:
            found.append(view[start : start + size])
            start += _padded(size)
        return found

    def unpack(self) -> Any:
        """The object. Raises OSError, and what its class raises."""
        pickled, *buffers = self.parts()
        return pickle.loads(pickled, buffers=buffers)  # noqa: S301  written by a process of the same model

    def _mapped(self) -> memoryview:
        descriptor = os.open(self.file, os.O_RDONLY)
        try:
            return memoryview(mmap.mmap(descriptor, self.size_bytes, access=mmap.ACCESS_COPY))
        finally:
            os.close(descriptor)


class ParcelWriter:
    """Makes the parcels of one process; their files lie in ``directory`` and begin with ``prefix``."""

    def __init__(self, directory: Path, prefix: str, inline_bytes: int = INLINE_BYTES) -> None:
        self._directory = directory
        self._prefix = prefix
        self._inline_bytes = inline_bytes
        self._numbers = itertools.count(1)

    def pack(self, value: object) -> Parcel:
        """Raises what pickling raises: PicklingError, TypeError, AttributeError, …"""
        buffers: list[memoryview] = []

        def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _BUFFER_BYTES:
                return True
            buffers.append(raw)
            return False

        target = BytesIO()
        _TensorPickler(target, 5, buffer_callback=keep_in_band).dump(value)
        return self.of_parts([target.getbuffer(), *buffers])

    def of_parts(self, parts: Sequence[memoryview | bytes]) -> Parcel:
        """A parcel of these bytes."""
        sizes = tuple(len(part) for part in parts)
        pieces: list[memoryview | bytes] = []
        for part in parts:
            pieces += [part, bytes(_padded(len(part)) - len(part))]
        if sum(map(len, pieces)) > self._inline_bytes:
            file = self.new_file()
            with suppress(OSError):  # the memory file system is full, most likely
                _write(file, pieces)
                return Parcel(sizes, file=file)
            with suppress(OSError):
                os.unlink(file)
        return Parcel(sizes, b"".join(pieces))

    def new_file(self) -> str:
        """A path for the next parcel."""
        return str(self._directory / f"{self._prefix}-{next(self._numbers)}")


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _write(file: str, pieces: Sequence[memoryview | bytes]) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        left = [memoryview(piece) for piece in pieces if len(piece)]
        while left:
            written = os.writev(descriptor, left[:_VECTORS])
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]
    finally:
        os.close(descriptor)


def remove_unannounced(directory: Path, prefix: str, known: Callable[[str], bool]) -> None:
    """Remove the files of an ended process that no message has named."""
    for path in directory.glob(f"{prefix}-*"):
        if not known(str(path)):
            path.unlink(missing_ok=True)


class _TensorPickler(pickle.Pickler):
    """Gives the memory of tensors out of band, too; those on a device are copied from there."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return NotImplemented
        if value.layout is not torch.strided or value.is_quantized or not value.numel():
            return NotImplemented
        plain = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
        try:
            flat = plain.reshape(-1).view(torch.uint8).numpy()
        except (RuntimeError, TypeError):
            return NotImplemented
        name = str(plain.dtype).removeprefix("torch.")
        return _tensor_of, (pickle.PickleBuffer(flat), name, tuple(plain.shape))


def _tensor_of(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    torch = importlib.import_module("torch")
    return torch.frombuffer(buffer, dtype=getattr(torch, dtype)).reshape(shape)
