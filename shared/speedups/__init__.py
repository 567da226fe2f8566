"""Functions for bytes, each written in Python and, optionally, in C (:file:`_native.c`).

The native ones are taken where they were built, unless ``TRUNKLINE_NATIVE=0`` is set when the process starts.
They do the same: the tests compare them input by input, and run what uses them with both.
"""

import os

from shared.speedups import websocket_frames

try:
    if os.environ.get("TRUNKLINE_NATIVE") == "0":
        raise ImportError
    from shared.speedups import _native as native
except ImportError:
    native = None  # type: ignore[assignment]

NATIVE = native is not None
"""Whether the native ones are in use."""

if native is not None:
    cut_messages, frame_messages = native.cut_messages, native.frame_messages
else:
    cut_messages, frame_messages = websocket_frames.cut_messages, websocket_frames.frame_messages

__all__ = ["NATIVE", "cut_messages", "frame_messages"]
