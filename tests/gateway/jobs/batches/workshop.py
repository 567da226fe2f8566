"""Batches on a store and a directory, with a clock of their own; the test runs their jobs."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.domain.batches import BatchRecord, NewBatch
from gateway.domain.files import FilePurpose, NewFile
from gateway.domain.jobs import JobEstimate, JobOutcome, JobRecord, JobState
from gateway.domain.request import Principal, Request
from gateway.jobs.batches.publication import BatchPublisher
from gateway.jobs.batches.result_lines import FinishedLines, ResultLines
from gateway.jobs.batches.service import BatchService
from gateway.jobs.batches.submission import BatchReader, describe_principal
from gateway.jobs.batches.window import WindowCheck
from gateway.jobs.batches.worker import BatchSettings, BatchWorker
from gateway.jobs.files import FileService
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.service import FleetOutlook, JobService
from gateway.pipeline.job_requests import JobRequestReader
from gateway.storage import Store
from gateway.storage.jobs import JobBounds, JobClaim
from gateway.storage.objects import ObjectStore

CHAT: Final = "/v1/chat/completions"
NOW_S = 1_800_000_000.0
PRINCIPAL = Principal("k", "key", "t")

Json = dict[str, Any]


class UnknownSpeeds:
    """Nothing is known of how long a request takes."""

    def estimate(self, request: Request) -> JobEstimate:
        return JobEstimate()

    def slots(self, model: str) -> int:
        return 1


class KnownSpeeds:
    """Each request takes so long."""

    def __init__(self, seconds: float | None, slots: int) -> None:
        self._seconds = seconds
        self._slots = slots

    def estimate(self, request: Request) -> JobEstimate:
        return JobEstimate(self._seconds)

    def slots(self, model: str) -> int:
        return self._slots


def request_line(custom_id: object = "a", model: str = "m", **other: Any) -> Json:
    """A line of a file, as OpenAI documents it; None leaves a member out."""
    body = {"model": model, "messages": [{"role": "user", "content": f"say {custom_id}"}]}
    line = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | other
    return {name: value for name, value in line.items() if value is not None}


def jsonl(*lines: Json | bytes) -> bytes:
    return b"".join((each if isinstance(each, bytes) else orjson.dumps(each)) + b"\n" for each in lines)


class Workshop:
    """What makes and works on batches."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.now_s = NOW_S
        self.store = store
        self.objects = ObjectStore.in_directory(directory / "objects")
        self.opener = ObjectOpener(lambda: self.objects)
        self.files = FileService(store.files, self.opener, wall=lambda: self.now_s)
        self.knows: Callable[[str], bool] = lambda name: True
        self.bounds = JobBounds()
        self.outlook: FleetOutlook = UnknownSpeeds()
        self.window: WindowCheck | None = None
        self._numbers = itertools.count(1)
        self.finished = FinishedLines(store.jobs, ResultLines(self.opener), lambda: self.now_s)
        self.service = BatchService(store.batches, lambda: None, lambda: self.now_s, self.finished)

    def worker(self, process: str = "one", settings: BatchSettings | None = None) -> BatchWorker:
        reading = JobRequestReader(lambda: 0.0)
        jobs = JobService(
            self.store.jobs, self.opener, reading, self.outlook, JobBounds(), wall=lambda: self.now_s
        )
        return BatchWorker(
            self.store.batches,
            self.store.jobs,
            BatchReader(jobs, self.opener, lambda name: self.knows(name)),
            BatchPublisher(self.store.jobs, self.store.files, self.files),
            process,
            self.bounds,
            lambda: self.now_s,
            settings or BatchSettings(rest_s=-1.0, idle_s=-1.0, lease_s=30.0, chunk_lines=3),
            window=self.window,
        )

    async def upload(self, content: bytes, purpose: FilePurpose = FilePurpose.BATCH) -> str:
        file = NewFile(f"file-{next(self._numbers)}", "t", "k", "in.jsonl", purpose, self.now_s)

        async def pieces() -> Any:
            for at in range(0, len(content), 1 << 20):
                yield content[at : at + (1 << 20)]

        return (await self.files.create(file, pieces(), len(content))).id

    async def create(self, content: bytes, **other: Any) -> BatchRecord:
        file_id = await self.upload(content)
        principal = other.pop("principal", PRINCIPAL)
        batch = NewBatch(
            f"batch_{next(self._numbers)}",
            "t",
            "k",
            describe_principal(principal),
            other.pop("endpoint", CHAT),
            file_id,
            "24h",
            self.now_s,
            self.now_s + 86_400,
            **other,
        )
        return await self.service.create(batch)

    async def see(self, batch: BatchRecord) -> BatchRecord:
        return await self.service.get(batch.id, "t")

    def jobs(self, batch: BatchRecord) -> Sequence[JobRecord]:
        return self.store.jobs.list(group=batch.id, limit=100_000, newest_first=False)

    async def answer(self, most: int = 1000, status: int = 200, model: str = "m", **said: Any) -> int:
        """Run jobs, in their order; how many."""
        claim = JobClaim("runner", 1, model, most, 30.0)
        jobs = self.store.job_claims.claim(claim, self.now_s)
        for job in jobs:
            content = orjson.dumps(
                {"said": job.new.custom_id, "usage": {"prompt_tokens": 3, "completion_tokens": 2}} | said
            )
            name = f"jobs/{job.id}/result/000001-000001"
            await self.objects.put_bytes(name, content)
            state = JobState.SUCCEEDED if status < 400 else JobState.FAILED
            outcome = JobOutcome(state, status, (), name, len(content))
            assert job.lease is not None
            self.store.job_claims.publish(job.id, job.lease, outcome, self.now_s, self.now_s + 10**6)
        return len(jobs)

    async def lines_of(self, file_id: str | None) -> list[Json]:
        if file_id is None:
            return []
        file = await self.files.get(file_id, "t")
        content = b"".join([piece async for piece in self.files.read(file)])
        assert len(content) == file.size_bytes
        return [orjson.loads(line) for line in content.splitlines()]

    def kept(self) -> set[str]:
        """The names of all objects of files."""
        return {path.name for path in Path(self.objects.place).joinpath("files").iterdir()}
