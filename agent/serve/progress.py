"""What a model says of its progress, on its way out of the process that computes: of each item the newest, a
few times a second. Whatever a model says there is harmless: what cannot be told is left out, and logged once.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from agent.serve.messages import ProgressReport
from shared.protocol import limits

_log = logging.getLogger("model")

PROGRESS_S = 0.1
"""Progress is told no more often."""
PREVIEW_S = 0.15
"""The same of previews; what else is said does not wait for them."""

_KINDS = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)
"""How files of media types begin."""

Later = Callable[[float, Callable[[], None]], object]
"""Calls a function after so many seconds, in whichever thread."""


def in_a_thread(seconds: float, call: Callable[[], None]) -> None:
    """Implements :data:`Later`."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


class _Said(NamedTuple):
    fraction: float | None
    words: str
    preview: bytes | None
    media_type: str


class ProgressTeller:
    """Belongs to one model's process. May be used from any thread."""

    def __init__(
        self,
        send: Callable[[ProgressReport], None],
        clock: Callable[[], float] = time.monotonic,
        later: Later = in_a_thread,
    ) -> None:
        self._send = send
        self._clock = clock
        self._later = later
        self._lock = threading.Lock()
        self._numbers: Sequence[int] = ()
        """The items of the batch that is computed."""
        self._newest: dict[int, _Said] = {}
        """Of each item, where it is not told yet."""
        self._held: set[int] = set()
        """Items of which all but the preview is told."""
        self._told_s = self._shown_s = -math.inf
        """When anything was told last, and when a preview."""
        self._called_s = math.inf
        """When :meth:`_flush_later` is called next."""
        self._complaints: set[str] = set()

    def begin(self, numbers: Sequence[int]) -> None:
        """These items are computed now."""
        with self._lock:
            self._numbers = numbers

    def end(self) -> None:
        """The batch is computed: what is the newest of its items is told now, and nothing later."""
        with self._lock:
            self._flush(with_previews=True)
            self._numbers = ()

    def report(
        self,
        fraction: float | None,
        words: str = "",
        preview: bytes | bytearray | memoryview | None = None,
        index: int | None = None,
        media_type: str = "",
    ) -> None:
        """See :meth:`agent.serve.model.Model.report_progress`. Raises nothing."""
        try:
            said = _Said(self._share(fraction), self._words(words), *self._picture(preview, media_type))
        except Exception as error:
            self._complain("unfit", f"what cannot be told: {type(error).__name__}: {error}")
            return
        with self._lock:
            numbers = self._numbers
            if index is not None:
                if not isinstance(index, int) or not -len(numbers) <= index < len(numbers):
                    if numbers:
                        self._complain("index", "an index that is none of the batch")
                    return
                numbers = (numbers[index],)
            for number in numbers:
                self._held.discard(number)
                before = self._newest.get(number)
                if before is not None and before.preview is not None and said.preview is None:
                    self._newest[number] = said._replace(preview=before.preview, media_type=before.media_type)
                else:
                    self._newest[number] = said
            if self._called_s > self._told_s + PROGRESS_S:
                self._flush_when_due()

    def _flush_when_due(self) -> None:
        """Tell now what may be told, and the rest when it may be. The lock is held."""
        now_s = self._clock()
        if self._due_s() <= now_s:
            self._flush(with_previews=self._shown_s + PREVIEW_S <= now_s)
        if self._newest and (due_s := self._due_s()) < self._called_s:
            self._called_s = due_s
            self._later(max(0.0, due_s - now_s), self._flush_later)

    def _due_s(self) -> float:
        """When something more may be told; inf: there is nothing."""
        if len(self._newest) > len(self._held):
            return self._told_s + PROGRESS_S
        return self._shown_s + PREVIEW_S if self._newest else math.inf

    def _flush_later(self) -> None:
        with self._lock:
            self._called_s = math.inf
            self._flush_when_due()

    def _flush(self, *, with_previews: bool) -> None:
        """Tell what is newest; previews are held back unless they are told with it."""
        newest, self._newest = self._newest, {}
        alike: dict[_Said, list[int]] = {}
        for number, said in newest.items():
            if said.preview is None or with_previews:
                self._held.discard(number)
                alike.setdefault(said, []).append(number)
            else:
                self._newest[number] = said
                if number not in self._held:
                    self._held.add(number)
                    alike.setdefault(said._replace(preview=None, media_type=""), []).append(number)
        for said, numbers in alike.items():
            self._told_s = self._clock()
            if said.preview is not None:
                self._shown_s = self._told_s
            self._send(ProgressReport(tuple(numbers), *said))

    # --- What may be told

    def _share(self, fraction: Any) -> float | None:
        share = None if fraction is None else float(fraction)
        return None if share is None or math.isnan(share) else min(1.0, max(0.0, share))

    def _words(self, words: Any) -> str:
        return str(words)[: limits.PROGRESS_TEXT_CHARS]

    def _picture(self, preview: Any, media_type: Any) -> tuple[bytes | None, str]:
        if preview is None:
            return None, ""
        data = bytes(memoryview(preview))
        if len(data) > limits.PREVIEW_BYTES:
            most = limits.PREVIEW_BYTES
            self._complain("long", f"a preview of {len(data)} bytes, and {most} are told at the most")
            return None, ""
        return data, str(media_type)[: limits.MEDIA_TYPE_CHARS] or media_type_of(data)

    def _complain(self, kind: str, what: str) -> None:
        """Once for each kind."""
        if kind not in self._complaints:
            self._complaints.add(kind)
            _log.warning("report_progress was given %s: it is left out", what)


def media_type_of(data: bytes) -> str:
    """By how it begins."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for mark, kind in _KINDS if data.startswith(mark)), "application/octet-stream")
