"""The events of a background response for one reader, from those that are kept on to its end."""

from collections.abc import AsyncIterator, Awaitable, Callable

from gateway.api.jobs.events import COMMENT, OUTPUT_EVERY_S, JobChanges, JobOutput, JobWaits
from gateway.domain.jobs import JobRecord, JobState
from gateway.jobs.object_names import START, OutputPosition
from gateway.jobs.responses import END_BYTES, Json, NumberedEvents, is_streamed
from gateway.storage.errors import ObjectMissing
from shared.process.server_sent_events import OVERLAP_BYTES, last_event_end


class EventOverlong(Exception):
    """An event of an engine's is longer than ``END_BYTES``."""


class ResponseFollower:
    """Of one reader. It goes on from whole events only: what follows half of one may be another run's."""

    def __init__(
        self,
        output: JobOutput,
        changes: JobChanges,
        events: NumberedEvents,
        output_every_s: float = OUTPUT_EVERY_S,
    ) -> None:
        self._output = output
        self._waits = JobWaits(changes, output_every_s)
        self._events = events
        self._at: OutputPosition = START

    async def __call__(
        self, job: JobRecord, final: Callable[[JobRecord], Awaitable[Json]]
    ) -> AsyncIterator[bytes]:
        """Pieces of the event stream, until the response has ended and all is told. ``final`` gives the
        response of a job that has ended. Raises UnknownRecord when the job goes meanwhile, StateError."""
        yield self._events.announced()
        while True:
            told = self._at
            try:
                async for piece in self._kept(job):
                    yield piece
            except EventOverlong:
                yield self._events.close(await final(job))
                return
            if job.state.is_final:
                if not self._events.ended:
                    yield self._events.close(await final(job))
                return
            if self._waits.silent_for_long(job, told=self._at != told):
                yield COMMENT
            job = await self._waits.changed(job)

    async def _kept(self, job: JobRecord) -> AsyncIterator[bytes]:
        """Events that are whole behind those that were read."""
        if not _has_events(job):
            return
        held, searched = bytearray(), 0
        try:
            async for piece in self._output.read(job, self._at):
                since, offset = piece.position.since, piece.position.offset
                if since != self._at.since:
                    self._at = OutputPosition(since, 0)
                    held.clear()
                    searched = 0
                    yield self._events.begin(since)
                if offset != self._at.offset + len(held):  # it was kept anew meanwhile: read it again
                    return
                held += piece.data
                end = last_event_end(held, searched)
                if end:
                    self._at = OutputPosition(since, self._at.offset + end)
                    yield self._events.read(bytes(held[:end]))
                    del held[:end]
                searched = max(0, len(held) - OVERLAP_BYTES)
                if len(held) > END_BYTES:
                    raise EventOverlong
        except ObjectMissing:  # another run took over, or the job has just ended
            if job.state.is_final:
                raise
            return
        if held and job.state.is_final:
            yield self._events.read(bytes(held))


def _has_events(job: JobRecord) -> bool:
    outcome = job.outcome
    if outcome is None:
        return job.state is JobState.RUNNING or job.attempts > 0
    return outcome.state is JobState.SUCCEEDED and is_streamed(outcome)
