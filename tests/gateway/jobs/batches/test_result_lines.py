"""What a batch has by now is had at any time, as it comes into its files at the end."""

import orjson
import pytest

from gateway.domain.batches import BatchRecord
from gateway.domain.line_ranges import ALL_LINES, read_ranges
from gateway.jobs.batches import result_lines
from tests.gateway.jobs.batches.workshop import Workshop, jsonl, request_line


async def finished(workshop: Workshop, batch: BatchRecord, lines: str = "") -> list[str]:
    """The custom ids of the lines that there are."""
    ranges = read_ranges(lines) if lines else ALL_LINES
    batch = await workshop.see(batch)
    return [orjson.loads(line)["custom_id"] async for line in workshop.service.results(batch, ranges)]


async def test_lines_are_there_once_they_have_ended(workshop: Workshop) -> None:
    batch = await workshop.create(jsonl(*(request_line(f"c{number}") for number in range(1, 9))))
    assert await finished(workshop, batch) == []
    worker = workshop.worker()
    await worker.look()
    await workshop.answer(3)
    await workshop.answer(1, status=400)
    assert await finished(workshop, batch) == ["c1", "c2", "c3", "c4"]
    assert await finished(workshop, batch, "2-3") == ["c2", "c3"]
    assert await finished(workshop, batch, "4-,1") == ["c1", "c4"]
    assert await finished(workshop, batch, "3-700") == ["c3", "c4"]
    assert await finished(workshop, batch, "5-,900-") == []
    await workshop.answer()
    await worker.look()
    done = await workshop.see(batch)
    every = [line async for line in workshop.service.results(done, ALL_LINES)]
    files = [await workshop.lines_of(each) for each in (done.output_file_id, done.error_file_id)]
    assert [orjson.loads(line) for line in every if b'"c4"' not in line] == files[0]
    assert [orjson.loads(line) for line in every if b'"c4"' in line] == files[1]


async def test_lines_of_many_pages_come_once_and_in_their_order(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_lines, "PAGE_LINES", 20)
    ids = [f"c{number}" for number in range(45)]
    batch = await workshop.create(jsonl(*map(request_line, ids)))
    await workshop.create(jsonl(request_line("of another batch")))
    await workshop.worker().look()
    assert await workshop.answer() == 46
    assert await finished(workshop, batch) == ids
    assert await finished(workshop, batch, "10-42") == ids[9:42]


async def test_lines_that_are_cancelled_say_so(workshop: Workshop) -> None:
    batch = await workshop.create(jsonl(request_line("a"), request_line("b")))
    worker = workshop.worker()
    await worker.look()
    await workshop.answer(1)
    await workshop.service.cancel(batch.id, "t")
    await worker.look()
    workshop.now_s += 10**6
    done = await workshop.see(batch)
    lines = [orjson.loads(line) async for line in workshop.service.results(done, ALL_LINES)]
    assert [line["error"] and line["error"]["code"] for line in lines] == [None, "batch_cancelled"]
