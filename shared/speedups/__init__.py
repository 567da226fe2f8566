"""Functions for bytes, each written in Python and, optionally, in C (:file:`_native*.c`).

The native ones are taken where they were built, unless ``TRUNKLINE_NATIVE=0`` is set when the process starts.
They do the same: the tests compare them input by input, and run what uses them with both.
"""

import os
from typing import TYPE_CHECKING

from shared.speedups import (
    body_path,
    header_collector,
    huge_pages,
    out_path,
    read_path,
    session_frames,
    websocket_frames,
)

_INTERFACE = 3
"""As in :file:`_native.h`: what Python calls, gives and reads."""

try:
    if os.environ.get("TRUNKLINE_NATIVE") == "0":
        raise ImportError
    from shared.speedups import _native as native

    if getattr(native, "INTERFACE", 0) != _INTERFACE:
        raise ImportError  # built from an older version of the sources, or a newer one
except ImportError:
    native = None  # type: ignore[assignment]

NATIVE = native is not None
"""Whether the native ones are in use."""

if TYPE_CHECKING or native is None:
    from shared.speedups.body_path import BodyPath, ReceivedBytes, receive_bodies, write_bodies
    from shared.speedups.header_collector import HeaderCollector
    from shared.speedups.huge_pages import collapse_pages, use_huge_pages
    from shared.speedups.out_path import ChunkReader, OutPath, take_turns
    from shared.speedups.read_path import read_ready
    from shared.speedups.session_frames import cut_frames
    from shared.speedups.websocket_frames import cut_messages, frame_messages
else:
    BodyPath, ReceivedBytes = native.BodyPath, native.ReceivedBytes
    receive_bodies, write_bodies = native.receive_bodies, native.write_bodies
    HeaderCollector = native.HeaderCollector
    ChunkReader, OutPath, take_turns = native.ChunkReader, native.OutPath, native.take_turns
    collapse_pages, use_huge_pages = native.collapse_pages, native.use_huge_pages
    read_ready = native.read_ready
    cut_frames = native.cut_frames
    cut_messages, frame_messages = native.cut_messages, native.frame_messages

__all__ = [
    "NATIVE",
    "BodyPath",
    "ChunkReader",
    "HeaderCollector",
    "OutPath",
    "ReceivedBytes",
    "body_path",
    "collapse_pages",
    "cut_frames",
    "cut_messages",
    "frame_messages",
    "header_collector",
    "huge_pages",
    "out_path",
    "read_path",
    "read_ready",
    "receive_bodies",
    "session_frames",
    "take_turns",
    "use_huge_pages",
    "websocket_frames",
    "write_bodies",
]
