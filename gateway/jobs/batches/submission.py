"""Reads the file of a batch, first to see whether it is good, then to make jobs of its lines."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from gateway.domain.batches import MOST_ERRORS, MOST_INPUT_BYTES, MOST_LINES, BatchError, BatchRecord
from gateway.domain.errors import RequestError
from gateway.domain.files import MIB
from gateway.domain.jobs import NewJob, ObjectSlice
from gateway.domain.request import Principal, Tier
from gateway.domain.residency import where_of
from gateway.domain.scopes import scopes_of
from gateway.jobs.batches.lines import InputLine, LineRequest, LineSplitter, LineTooLong, read_line
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.predictions import BatchWork
from gateway.jobs.service import JobDraft, JobService, JobTerms
from gateway.storage.errors import ObjectMissing

MOST_LINE_BYTES = 64 * MIB
"""As the body of a request may have."""
_IN_ONE_TURN = 10
"""Lines that are understood before others get a turn of the event loop."""

Renew = Callable[[], Awaitable[None]]
"""Keeps the lease on the batch; raises BatchLost."""


@dataclass(frozen=True, slots=True)
class GoodFile:
    """What is in a file that can be a batch."""

    total: int
    model: str
    work: BatchWork


class BatchReader:
    """Belongs to the event loop's thread."""

    def __init__(
        self, jobs: JobService, objects: ObjectOpener, knows: Callable[[str], bool] = lambda name: True
    ) -> None:
        """``knows`` says whether there is a model or an alias of a name."""
        self._jobs = jobs
        self._objects = objects
        self._knows = knows

    async def check(self, batch: BatchRecord, renew: Renew) -> GoodFile | tuple[BatchError, ...]:
        """What is in the file, or what is wrong with it: the first errors, in the order of its lines. Raises
        StateError."""
        checked = _Check(batch)
        try:
            if await self._size_bytes(batch) > MOST_INPUT_BYTES:
                message = f"The input file has more than {MOST_INPUT_BYTES // MIB} MB."
                return (BatchError("file_too_large", message),)
            if await self._has_too_many_lines(batch, renew):
                message = "The batch input file contains too many requests. "
                return (BatchError("too_many_requests", f"{message}At most {MOST_LINES} are allowed."),)
            async for lines in self._lines(batch, renew):
                requests = await asyncio.to_thread(checked.take, lines)
                for place, request in enumerate(requests):
                    if place % _IN_ONE_TURN == 0:
                        await asyncio.sleep(0)
                    await self._try(batch, request, checked)
                if checked.full:
                    break
        except LineTooLong as error:
            message = f"This line has more than {MOST_LINE_BYTES} bytes."
            checked.errors.append(BatchError("line_too_long", message, error.number))
        except ObjectMissing:
            return (BatchError("file_not_found", "The bytes of the input file are gone."),)
        return checked.verdict()

    async def chunks(
        self, batch: BatchRecord, size: int, renew: Renew
    ) -> AsyncIterator[tuple[list[NewJob], int]]:
        """The jobs of the lines from ``batch.read_bytes`` on, so many at once, and where the next line
        begins. Raises StateError."""
        number = count(batch.submitted + 1)
        jobs: list[NewJob] = []
        async for lines in self._lines(batch, renew):
            requests = await asyncio.to_thread(_read_all, lines, batch.new.endpoint)
            for place, request in enumerate(requests):
                if place % _IN_ONE_TURN == 0:
                    await asyncio.sleep(0)
                jobs.append(await self._job(batch, request, next(number)))
                if len(jobs) >= size:
                    yield jobs, request.line.end
                    jobs = []
        if jobs:
            yield jobs, request.line.end

    async def _try(self, batch: BatchRecord, request: LineRequest, checked: "_Check") -> None:
        """Note what speaks against the request of a line."""
        number = request.line.number
        if not self._knows(request.model):
            message = f"There is no model '{request.model}' here."
            checked.errors.append(BatchError("model_not_found", message, number, "body.model"))
            return
        try:
            checked.add((await self._prepare(batch, request)).predicted_s)
        except RequestError as error:
            param = None if error.param is None else f"body.{error.param}"
            checked.errors.append(BatchError(str(error.code), str(error), number, param))

    async def _prepare(self, batch: BatchRecord, request: LineRequest) -> NewJob:
        """Raises RequestError."""
        new = batch.new
        terms = JobTerms(tier=Tier.BATCH, deadline_s=new.expires_s, group=new.id, custom_id=request.custom_id)
        draft = JobDraft(new.endpoint, (("content-type", "application/json"),), terms)
        return await self._jobs.prepare(
            principal_of(new.principal), draft, request.body, self._at(batch, request)
        )

    async def _job(self, batch: BatchRecord, request: LineRequest, number: int) -> NewJob:
        """Of a line that was good when the file was read. Where it is good no longer its job says why."""
        new, job_id = batch.new, batch.new.line_id(number)
        try:
            return replace(await self._prepare(batch, request), id=job_id)
        except RequestError:
            return NewJob(
                job_id,
                new.tenant,
                new.key_id,
                request.model,
                new.endpoint,
                self._at(batch, request),
                (("content-type", "application/json"),),
                deadline_s=new.expires_s,
                group=new.id,
                custom_id=request.custom_id,
            )

    async def _lines(self, batch: BatchRecord, renew: Renew) -> AsyncIterator[Sequence[InputLine]]:
        """Those from ``batch.read_bytes`` on, as many at once as a piece of the file has. Raises LineTooLong,
        StateError."""
        splitter = LineSplitter(MOST_LINE_BYTES, batch.read_bytes)
        objects = await self._objects()
        async for piece in objects.read(_object_of(batch), batch.read_bytes):
            yield await asyncio.to_thread(lambda data: list(splitter.feed(data)), piece)
            await renew()
        yield list(splitter.finish())

    async def _has_too_many_lines(self, batch: BatchRecord, renew: Renew) -> bool:
        """Asked before any line is understood, which takes much longer than to count them. Raises
        StateError."""
        ends = 0
        objects = await self._objects()
        async for piece in objects.read(_object_of(batch), 0):
            ends += piece.count(b"\n")
            await renew()
        if ends < MOST_LINES:  # the last line may have no end
            return False
        total = 0
        try:
            async for lines in self._lines(batch, renew):  # those that are not blank
                total += len(lines)
        except LineTooLong:
            return False  # which is what is wrong, if nothing before it is
        return total > MOST_LINES

    async def _size_bytes(self, batch: BatchRecord) -> int:
        return await (await self._objects()).size_bytes(_object_of(batch))

    @staticmethod
    def _at(batch: BatchRecord, request: LineRequest) -> ObjectSlice:
        return ObjectSlice(_object_of(batch), request.start, request.stop)


class _Check:
    """What a file has so far, and what is wrong with it. At most as many ids as lines are kept."""

    def __init__(self, batch: BatchRecord) -> None:
        self._endpoint = batch.new.endpoint
        self.errors: list[BatchError] = []
        self._lines = 0
        self._model: str | None = None
        self._ids: set[str] = set()
        self._work = BatchWork()

    @property
    def full(self) -> bool:
        """There is no need to read on."""
        return len(self.errors) >= MOST_ERRORS

    def take(self, lines: Sequence[InputLine]) -> list[LineRequest]:
        """Those lines that are good by themselves and beside the others."""
        found = []
        for line in lines:
            self._lines += 1
            if self.full:
                break
            request = read_line(line, self._endpoint)
            wrong = request if isinstance(request, BatchError) else self._misfit(request)
            if wrong is not None:
                self.errors.append(wrong)
            elif isinstance(request, LineRequest):
                found.append(request)
        return found

    def _misfit(self, request: LineRequest) -> BatchError | None:
        number = request.line.number
        if request.custom_id in self._ids:
            message = (
                f"The custom_id '{request.custom_id}' for this request is a duplicate of another request. "
                "The custom_id parameter must be unique for each request in a batch."
            )
            return BatchError("duplicate_custom_id", message, number, "custom_id")
        self._ids.add(request.custom_id)
        self._model = self._model or request.model
        if request.model != self._model:
            message = (
                f"The provided model '{request.model}' does not match the rest of the batch '{self._model}'."
            )
            return BatchError("mismatched_model", message, number, "body.model")
        return None

    def add(self, predicted_s: float | None) -> None:
        """A request is good, and is predicted to take so long."""
        self._work = self._work.with_request(predicted_s)

    def verdict(self) -> GoodFile | tuple[BatchError, ...]:
        if self.errors:
            return tuple(sorted(self.errors, key=lambda error: error.line or 0)[:MOST_ERRORS])
        if self._model is None:
            message = "The batch input file is empty. Please ensure that it contains at least one request."
            return (BatchError("empty_file", message),)
        return GoodFile(self._lines, self._model, self._work)


def _read_all(lines: Sequence[InputLine], endpoint: str) -> list[LineRequest]:
    """Of a file that was found good."""
    found = [read_line(line, endpoint) for line in lines]
    assert not any(isinstance(each, BatchError) for each in found)
    return [each for each in found if isinstance(each, LineRequest)]


def _object_of(batch: BatchRecord) -> str:
    return f"files/{batch.new.input_file_id}"


def describe_principal(principal: Principal) -> dict[str, object]:
    """What :func:`principal_of` reads."""
    return {
        "key_id": principal.key_id,
        "key_name": principal.key_name,
        "tenant": principal.tenant,
        "where": None if principal.where is None else principal.where.to_dict(),
        "scopes": None if principal.scopes is None else principal.scopes.to_dict(),
    }


def principal_of(said: Mapping[str, Any]) -> Principal:
    """Who asked for a batch, as far as that decides what its lines may ask for."""
    where, scopes = said["where"], said["scopes"]
    return Principal(
        said["key_id"],
        said["key_name"],
        said["tenant"],
        None if where is None else where_of(where),
        None if scopes is None else scopes_of(scopes),
    )
