"""Makes previews small enough to be told (PROTOCOL §4.12), where Pillow is installed (extra ``previews``).

ComfyUI's are 512 pixels wide by default, and mostly too long.
"""

import asyncio
import io
from collections.abc import Callable
from importlib.util import find_spec

from shared.protocol.limits import PREVIEW_BYTES
from shared.protocol.progress import Preview

SIDES = (384, 256, 128, 64)
"""Longest sides, in pixels, that are tried one after the other."""
QUALITY = 70
MOST_PIXELS = 4096 * 4096
"""A larger picture is not decoded."""

Done = Callable[[Preview], None]


class PreviewFitter:
    """Shrinks one picture at a time, in a thread; of those that come meanwhile only the newest waits."""

    def __init__(self, *, able: bool | None = None) -> None:
        self._able = find_spec("PIL") is not None if able is None else able
        self._task: asyncio.Task[None] | None = None
        self._next: tuple[Preview, Done] | None = None

    def fit(self, preview: Preview, done: Done) -> None:
        """Give ``done`` the preview, at once or later, no longer than it may be; or never, where it cannot be
        made so."""
        if len(preview.data) <= PREVIEW_BYTES:
            done(preview)
        elif self._able:
            self._next = preview, done
            if self._task is None:
                self._task = asyncio.create_task(self._work(), name="previews")

    async def close(self) -> None:
        """What is under way is given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while self._next is not None:
                (preview, done), self._next = self._next, None
                if (smaller := await asyncio.to_thread(shrunk, preview.data)) is not None:
                    done(smaller)
        finally:
            self._task = None


def shrunk(data: bytes) -> Preview | None:
    """The picture ``data`` as a JPEG that is short enough; None: it is no picture, or too large a one."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                return None
            small = picture.convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        return None
    for side in SIDES:
        small.thumbnail((side, side))
        written = io.BytesIO()
        small.save(written, "JPEG", quality=QUALITY)
        if written.tell() <= PREVIEW_BYTES:
            return Preview("image/jpeg", written.getvalue())
    return None
