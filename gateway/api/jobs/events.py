"""What happens to a job, as server-sent events that can be taken up again where they broke off.

The id of an event says all that its reader knows by then: state, attempts, progress, and the place in the
output. So any gateway can go on, and nothing is kept for readers that are away.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson

from gateway.domain.errors import BadRequest
from gateway.domain.jobs import JobRecord, JobState
from gateway.jobs.object_names import OutputPosition
from gateway.jobs.output_reader import OutputPiece
from gateway.storage.errors import ObjectMissing
from shared.protocol.progress import Preview

OUTPUT_EVERY_S = 0.5
"""Between two looks at the output of a job that runs."""
COMMENT_S = 15.0
"""After so long without an event a comment keeps the connection open."""
COMMENT = b": waiting\n\n"

_ID = re.compile(r"(\w*)\.(\d{1,9})\.(\d{0,4})\.(\d{1,9})\.(\d{1,18})\Z")
_PER_MILLE = 1000


@dataclass(frozen=True, slots=True)
class EventsPosition:
    """What a reader knows of a job."""

    state: str = ""
    attempts: int = 0
    progress: int | None = None
    """Of a thousand."""
    output: OutputPosition = field(default_factory=OutputPosition)

    @classmethod
    def read(cls, text: str) -> "EventsPosition":
        """Of an event's id; everything is told from the beginning where there is none. Raises BadRequest."""
        if not text:
            return cls()
        found = _ID.match(text)
        if found is None:
            raise BadRequest("Last-Event-ID is no id of an event of a job.", param="last-event-id")
        state, attempts, progress, since, offset = found.groups()
        output = OutputPosition(int(since), int(offset))
        return cls(state, int(attempts), int(progress) if progress else None, output)

    def __str__(self) -> str:
        progress = "" if self.progress is None else self.progress
        return f"{self.state}.{self.attempts}.{progress}.{self.output.since}.{self.output.offset}"


class JobOutput(Protocol):
    """:class:`gateway.jobs.output_reader.OutputReader`."""

    def read(self, job: JobRecord, position: OutputPosition) -> AsyncIterator[OutputPiece]: ...


class JobChanges(Protocol):
    """:class:`gateway.jobs.watch.JobWatch`."""

    async def changed(self, job: JobRecord) -> JobRecord: ...


class JobWaits:
    """The pauses of one reader, in which there is nothing to tell of a job."""

    def __init__(self, changes: JobChanges, output_every_s: float) -> None:
        self._changes = changes
        self._output_every_s = output_every_s
        self._silent_s = 0.0

    def silent_for_long(self, job: JobRecord, *, told: bool) -> bool:
        """Whether a comment is due, after a look at ``job`` in which there was something to tell, or not."""
        self._silent_s = 0.0 if told else self._silent_s + self._within_s(job)
        if self._silent_s <= COMMENT_S:
            return False
        self._silent_s = 0.0
        return True

    async def changed(self, job: JobRecord) -> JobRecord:
        """``job`` as it is when it has changed, or when its output is to be looked at again. Raises
        UnknownRecord."""
        try:
            async with asyncio.timeout(self._within_s(job)):
                return await self._changes.changed(job)
        except TimeoutError:
            return job

    def _within_s(self, job: JobRecord) -> float:
        return self._output_every_s if job.state is JobState.RUNNING else COMMENT_S


class JobEvents:
    """Of one reader."""

    def __init__(
        self,
        output: JobOutput,
        changes: JobChanges,
        position: EventsPosition,
        preview: Callable[[JobRecord], Awaitable[Preview | None]],
        output_every_s: float = OUTPUT_EVERY_S,
    ) -> None:
        """``preview`` gives what there is so far of a job's answer."""
        self._output = output
        self._preview = preview
        self._told: tuple[int | None, str | None, int] | None = None
        """Progress, its words and the number of previews, as the reader knows them; None: nothing was looked
        at yet."""
        self._waits = JobWaits(changes, output_every_s)
        self._position = position

    async def __call__(
        self, job: JobRecord, show: Callable[[JobRecord], Awaitable[Mapping[str, Any]]]
    ) -> AsyncIterator[bytes]:
        """Pieces of the event stream, until the job has ended and all is told. ``show`` makes the object of a
        job. Raises UnknownRecord when the job goes meanwhile, StateError."""
        while True:
            told = self._position
            async for event in self._output_events(job):
                yield event
            if (progress := await self._progress_event(job)) is not None:
                yield progress
            if (job.state.value, job.attempts) != (self._position.state, self._position.attempts):
                shown = await show(job)
                self._position = replace(self._position, state=job.state.value, attempts=job.attempts)
                yield self._event(f"job.{job.state.value}", shown)
            if job.state.is_final:
                return
            if self._waits.silent_for_long(job, told=self._position != told):
                yield COMMENT
            job = await self._waits.changed(job)

    async def _progress_event(self, job: JobRecord) -> bytes | None:
        """What is told of a job that has got further. Who goes on behind an event with the same progress has
        had its words as well."""
        progress = None if job.progress is None else round(job.progress * _PER_MILLE)
        known, said = self._told, (progress, job.progress_text, job.previews)
        if said == known or job.state.is_final or said == (None, None, 0):
            return None
        self._told = said
        if known is None and progress is not None and progress == self._position.progress:
            return None
        self._position = replace(self._position, progress=progress)
        shown: dict[str, Any] = {"progress": job.progress, "text": job.progress_text}
        if job.previews and (known is None or known[2] != job.previews):
            preview = await self._preview(job)
            shown["preview"] = None if preview is None else preview.to_dict()
        return self._event("job.progress", shown)

    async def _output_events(self, job: JobRecord) -> AsyncIterator[bytes]:
        """Text where it is UTF-8, of which no character is cut in two; else base64."""
        if job.state is JobState.QUEUED and not job.attempts:
            return
        at = self._position.output
        since, start, held = at.since, at.offset, b""
        try:
            async for piece in self._output.read(job, at):
                if (piece.position.since, piece.position.offset) != (since, start + len(held)):
                    since, start, held = piece.position.since, piece.position.offset, b""
                whole, held = whole_text(held + piece.data)
                if whole:
                    yield self._output_event(since, start, whole)
                    start += len(whole)
        except ObjectMissing:  # another run took over, or the job has just ended: told with what follows
            if job.state.is_final:
                raise
        if held and job.state.is_final:
            yield self._output_event(since, start, held)

    def _output_event(self, since: int, start: int, data: bytes) -> bytes:
        self._position = replace(self._position, output=OutputPosition(since, start + len(data)))
        shown: dict[str, Any] = {"since": since, "offset": start}
        try:
            shown["text"] = data.decode()
        except UnicodeDecodeError:
            shown["base64"] = b64encode(data).decode("ascii")
        return self._event("job.output", shown)

    def _event(self, name: str, data: Mapping[str, Any]) -> bytes:
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (
            str(self._position).encode("ascii"),
            name.encode("ascii"),
            orjson.dumps(data),
        )


def whole_text(data: bytes) -> tuple[bytes, bytes]:
    """Without a character of UTF-8 that is cut at the end, and what there is of it."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return (data[:-back], data[-back:]) if length > back else (data, b"")
    return data, b""
