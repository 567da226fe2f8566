"""Answers of jobs are kept as they come, gone on with by the next run, and read from any offset."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.object_names import START, OutputPosition, body_name, output_prefix, result_since
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output import AnswerHead, OutputSettings, PartialOutput
from gateway.jobs.output_reader import OutputReader
from gateway.storage.errors import ObjectStorageFull
from gateway.storage.objects import ObjectStore, StoredObject

HEAD = AnswerHead(200, (("content-type", "text/event-stream"),))
AT_ONCE = OutputSettings(interval_s=0.0, piece_bytes=1, waiting_bytes=4, retry_s=0.01)
LATER = OutputSettings(interval_s=3600.0)


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return ObjectStore.in_directory(tmp_path / "objects")


@pytest.fixture
def reader(objects: ObjectStore) -> OutputReader:
    return OutputReader(ObjectOpener(lambda: objects))


def record(state: JobState = JobState.RUNNING, outcome: JobOutcome | None = None) -> JobRecord:
    new = NewJob("j", "t", "k", "m", "/v1/completions", ObjectSlice(body_name("j")))
    return JobRecord(1, new, state, 0.0, outcome=outcome)


def ended(name: str, size_bytes: int) -> JobRecord:
    return record(
        JobState.SUCCEEDED, JobOutcome(JobState.SUCCEEDED, 200, result=name, result_bytes=size_bytes)
    )


async def said(reader: OutputReader, job: JobRecord, position: OutputPosition = START) -> bytes:
    return b"".join([piece.data async for piece in reader.read(job, position)])


async def written(objects: ObjectStore, generation: int, *data: bytes) -> None:
    """A run that wrote this and is gone."""
    async with PartialOutput(objects, "j", generation, LATER) as output:
        await output.begin(HEAD)
        for each in data:
            await output.append(each)
        await output.close()


async def until_async(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline_s = asyncio.get_running_loop().time() + 30.0
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.001)


async def test_whoever_is_cancelled_while_its_writer_ends_is_cancelled(objects: ObjectStore) -> None:
    async with PartialOutput(objects, "j", 1, LATER) as output:
        await output.begin(HEAD)
        await output.append(b"some")
        closing = asyncio.ensure_future(output.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing


class Follower:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def begin(self, since: int, offset: int) -> None:
        self.heard.append((since, offset))

    def append(self, data: bytes) -> None:
        self.heard.append(data)

    def stored(self, offset: int) -> None:
        self.heard.append(offset)

    def end(self) -> None:
        self.heard.append("end")


async def test_who_follows_hears_where_an_answer_begins_its_bytes_and_what_is_stored(
    objects: ObjectStore, reader: OutputReader
) -> None:
    await written(objects, 1, b"one", b"two")
    kept, follower = await reader.progress("j"), Follower()
    async with PartialOutput(objects, "j", 2, LATER, follower) as output:
        await output.begin(HEAD, kept, 4)
        await output.append(b"")
        await output.append(b"three")
        await output.append(b"four")
        await output.close()
    assert follower.heard == [(1, 4), b"three", b"four", 13]


async def test_a_short_answer_is_written_once_as_the_result(
    objects: ObjectStore, reader: OutputReader
) -> None:
    async with PartialOutput(objects, "j", 3, LATER) as output:
        await output.begin(HEAD)
        await output.append(b"all ")
        await output.append(b"of it")
        name, size_bytes = await output.finish()
    assert size_bytes == 9
    assert await objects.names("jobs/j") == [name]
    assert await said(reader, ended(name, size_bytes)) == b"all of it"


async def test_pieces_are_read_from_any_offset_while_more_comes(
    objects: ObjectStore, reader: OutputReader
) -> None:
    async with PartialOutput(objects, "j", 1, AT_ONCE) as output:
        await output.begin(HEAD)
        for data in (b"one", b"two", b"three"):
            await output.append(data)

            async def is_written(size_bytes: int = output.size_bytes) -> bool:
                found = await reader.progress("j")
                return found is not None and found.size_bytes == size_bytes

            await until_async(is_written)
        whole = b"onetwothree"
        for offset in range(len(whole) + 1):
            assert await said(reader, record(), OutputPosition(1, offset)) == whole[offset:]
        name, size_bytes = await output.finish()
    for offset in range(len(whole) + 1):
        assert await said(reader, ended(name, size_bytes), OutputPosition(1, offset)) == whole[offset:]
    progress = await reader.progress("j")
    assert progress is not None
    assert progress.head == HEAD


async def test_the_next_run_goes_on_behind_what_is_kept(objects: ObjectStore, reader: OutputReader) -> None:
    await written(objects, 1, b"first half, cut off")
    kept = await reader.progress("j")
    assert kept is not None
    async with PartialOutput(objects, "j", 4, LATER) as output:
        await output.begin(HEAD, kept, len(b"first half, "))
        await output.append(b"second half")
        await output.close()
    found = await reader.progress("j")
    assert found is not None
    assert (found.generation, found.since) == (4, 1)
    assert await said(reader, record(), OutputPosition(1, 6)) == b"half, second half"
    # nothing is left of the run that is gone
    assert all("/000004-" in name for name in await objects.names(output_prefix("j")))


async def test_a_run_that_starts_over_is_told_from_the_one_before(
    objects: ObjectStore, reader: OutputReader
) -> None:
    await written(objects, 1, b"of an earlier answer")
    await written(objects, 2, b"anew")
    pieces = [piece async for piece in reader.read(record(), OutputPosition(1, 5))]
    assert [(piece.position, piece.data) for piece in pieces] == [(OutputPosition(2, 0), b"anew")]
    assert pieces[0].next == OutputPosition(2, 4)


async def test_what_a_lost_run_still_writes_is_not_read(objects: ObjectStore, reader: OutputReader) -> None:
    lost = PartialOutput(objects, "j", 1, LATER)
    await lost.begin(HEAD)
    await lost.append(b"lost")
    await written(objects, 2, b"counts")
    await lost.close()
    assert await said(reader, record()) == b"counts"


async def test_a_run_that_died_while_it_took_over_leaves_the_earlier_one_readable(
    objects: ObjectStore, reader: OutputReader
) -> None:
    await written(objects, 1, b"kept")
    await objects.put_bytes("jobs/j/output/000002-00000001", b"ke")  # without its head
    found = await reader.progress("j")
    assert found is not None
    assert found.generation == 1
    assert await said(reader, record()) == b"kept"


class FullStore(ObjectStore):
    """Takes nothing until there is room."""

    room = False
    refused = 0

    async def put_bytes(self, name: str, content: bytes) -> StoredObject:
        if not self.room:
            self.refused += 1
            raise ObjectStorageFull("no room")
        return await super().put_bytes(name, content)


async def test_who_appends_waits_while_the_store_takes_nothing(tmp_path: Path) -> None:
    full = FullStore.in_directory(tmp_path)
    assert isinstance(full, FullStore)
    async with PartialOutput(full, "j", 1, AT_ONCE) as output:
        await output.begin(HEAD)
        await output.append(b"four")
        waits = asyncio.create_task(output.append(b"more"))
        await until_async(lambda: _refused(full, 3))
        assert not waits.done()
        full.room = True
        async with asyncio.timeout(30):
            await waits
        name, _ = await output.finish()
    assert await full.read_bytes(name, 100) == b"fourmore"


async def _refused(store: FullStore, times: int) -> bool:
    return store.refused >= times


async def test_an_abandoned_run_writes_nothing_more(objects: ObjectStore, reader: OutputReader) -> None:
    async with PartialOutput(objects, "j", 1, LATER) as output:
        await output.begin(HEAD)
        await output.append(b"of nobody's concern")
        await output.abandon()
    assert await objects.names("jobs/j") == []
    assert await reader.progress("j") is None


async def test_following_reads_what_is_written_and_then_the_result(
    objects: ObjectStore, reader: OutputReader
) -> None:
    async with PartialOutput(objects, "j", 1, AT_ONCE) as output:
        jobs = [record()]

        async def get_job() -> JobRecord:
            return jobs[-1]

        followed: list[bytes] = []

        async def follow() -> None:
            async for piece in reader.follow(get_job, poll_s=0.001):
                followed.append(piece.data)

        following = asyncio.create_task(follow())
        await output.begin(HEAD)
        await output.append(b"begun")
        await until_async(lambda: _equals(followed, [b"begun"]))
        await output.append(b" and ended")
        name, size_bytes = await output.finish()
        jobs.append(ended(name, size_bytes))
        await objects.delete(*await objects.names(output_prefix("j")))
        async with asyncio.timeout(30):
            await following
    assert b"".join(followed) == b"begun and ended"
    assert result_since(name) == 1


async def _equals(found: Sequence[bytes], wanted: Sequence[bytes]) -> bool:
    return list(found) == list(wanted)


async def test_a_job_without_a_result_has_no_bytes(reader: OutputReader) -> None:
    failed = replace(record(JobState.FAILED), outcome=JobOutcome(JobState.FAILED))
    assert await said(reader, failed) == b""

    async def get_job() -> JobRecord:
        return failed

    assert await _collected(reader.follow(get_job)) == []


async def _collected(pieces: AsyncIterator[object]) -> list[object]:
    return [piece async for piece in pieces]
