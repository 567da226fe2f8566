"""A file is good or the batch fails with what is wrong, and where."""

import pytest

from gateway.domain.batches import MOST_ERRORS, MOST_INPUT_BYTES, MOST_LINES, BatchRecord, BatchState
from gateway.domain.errors import Forbidden
from gateway.domain.files import MIB
from gateway.domain.request import Principal
from gateway.domain.residency import where_of
from gateway.domain.scopes import limited
from gateway.jobs.batches import submission
from gateway.jobs.batches.submission import describe_principal, principal_of
from tests.gateway.jobs.batches.workshop import Json, Workshop, jsonl, request_line


async def failed(workshop: Workshop, content: bytes, **other: object) -> list[tuple[object, ...]]:
    """What is said of each error: its code, its line, its parameter."""
    batch = await looked_at(workshop, content, **other)
    assert batch.state is BatchState.FAILED, batch
    assert workshop.jobs(batch) == ()
    assert set(batch.times) == {BatchState.FAILED}
    return [(each["code"], each["line"], each["param"]) for each in batch.errors]


async def looked_at(workshop: Workshop, content: bytes, **other: object) -> BatchRecord:
    batch = await workshop.create(content, **other)
    await workshop.worker().look()
    return await workshop.see(batch)


async def test_each_wrong_line_is_named(workshop: Workshop) -> None:
    content = jsonl(
        request_line("a"),
        b"{",
        request_line("b", url="/v1/other"),
        b"",
        request_line("a"),
        request_line("c", "n"),
    )
    assert await failed(workshop, content) == [
        ("invalid_json_line", 2, None),
        ("invalid_url", 3, "url"),
        ("duplicate_custom_id", 5, "custom_id"),
        ("mismatched_model", 6, "body.model"),
    ]


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
async def test_an_empty_file_is_none(workshop: Workshop, content: bytes) -> None:
    assert await failed(workshop, content) == [("empty_file", None, None)]


async def test_there_are_so_many_lines_and_no_more(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_LINES == 50_000
    monkeypatch.setattr(submission, "MOST_LINES", 5)
    lines = [request_line(str(number)) for number in range(6)]
    assert await failed(workshop, jsonl(*lines)) == [("too_many_requests", None, None)]
    assert await failed(workshop, jsonl(*lines).strip()) == [("too_many_requests", None, None)]
    assert (await looked_at(workshop, jsonl(*lines[:5]))).state is BatchState.IN_PROGRESS
    assert (await looked_at(workshop, jsonl(*lines[:5]) + b"\n \n")).state is BatchState.IN_PROGRESS


async def test_where_there_are_too_many_lines_none_is_understood(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MOST_LINES", 5)
    read: list[object] = []
    monkeypatch.setattr(submission, "read_line", lambda *given: read.append(given))
    content = b"{\n" * MOST_ERRORS
    assert await failed(workshop, content) == [("too_many_requests", None, None)]
    assert not read


async def test_a_line_that_is_too_long_is_named_however_many_there_are(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MOST_LINES", 2)
    monkeypatch.setattr(submission, "MOST_LINE_BYTES", 150)
    lines = jsonl(request_line("a"), request_line("b" * 99), *map(request_line, "cdef"))
    assert await failed(workshop, lines) == [("line_too_long", 2, None)]


async def test_there_are_so_many_bytes_and_no_more(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_INPUT_BYTES == 200 * MIB
    content = jsonl(request_line("a"))
    monkeypatch.setattr(submission, "MOST_INPUT_BYTES", len(content))
    assert (await looked_at(workshop, content)).state is BatchState.IN_PROGRESS
    assert await failed(workshop, content + b"\n") == [("file_too_large", None, None)]


async def test_a_line_may_be_as_long_as_a_request(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = jsonl(request_line("a"), request_line("b" * 99))
    monkeypatch.setattr(submission, "MOST_LINE_BYTES", 150)
    assert await failed(workshop, lines) == [("line_too_long", 2, None)]


async def test_a_file_with_nothing_but_errors_is_not_read_to_its_end(workshop: Workshop) -> None:
    errors = await failed(workshop, b"{\n" * 10_000)
    assert len(errors) == MOST_ERRORS
    assert errors[-1] == ("invalid_json_line", MOST_ERRORS, None)


async def test_models_that_there_are_not_or_not_for_this_key_are_named(workshop: Workshop) -> None:
    content = jsonl(request_line("a"))
    workshop.knows = lambda name: name != "m"
    assert await failed(workshop, content) == [("model_not_found", 1, "body.model")]
    workshop.knows = lambda name: True
    mine = Principal("k", "key", "t", scopes=limited(models=["other"]))
    assert await failed(workshop, content, principal=mine) == [("model_not_allowed", 1, "body.model")]


async def test_bytes_that_are_gone_are_named(workshop: Workshop) -> None:
    batch = await workshop.create(jsonl(request_line("a")))
    await workshop.objects.delete(f"files/{batch.new.input_file_id}")
    await workshop.worker().look()
    assert (await workshop.see(batch)).errors[0]["code"] == "file_not_found"


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n\r\n"])
async def test_each_line_is_one_job_with_the_bytes_of_its_body(workshop: Workshop, ending: bytes) -> None:
    lines: list[Json] = [request_line(f"id {number}") for number in range(7)]
    content = b"\xef\xbb\xbf" + jsonl(*lines).strip() + ending
    batch = await looked_at(workshop, content)
    assert (batch.state, batch.total, batch.submitted, batch.model) == (BatchState.IN_PROGRESS, 7, 7, "m")
    jobs = workshop.jobs(batch)
    assert [job.id for job in jobs] == [batch.new.line_id(number) for number in range(1, 8)]
    assert [job.new.custom_id for job in jobs] == [line["custom_id"] for line in lines]
    for job in jobs:
        at = job.new.body
        assert at.stop is not None
        assert content[at.start : at.stop].startswith(b'{"model":"m"')
        assert str(job.new.custom_id).encode() in content[at.start : at.stop]
        assert (job.new.deadline_s, job.new.tier, job.new.group) == (batch.new.expires_s, "batch", batch.id)


async def test_a_line_whose_key_may_not_any_more_is_a_job_all_the_same(workshop: Workshop) -> None:
    batch = await workshop.create(jsonl(request_line("a")))
    store, worker = workshop.store.batches, workshop.worker()
    (claimed,) = store.claim("another", -1.0, 1)
    store.begin(claimed, 1, "m", workshop.now_s)

    class Refusing:
        async def prepare(self, *given: object) -> object:
            raise Forbidden("no")

    worker._reader._jobs = Refusing()  # type: ignore[assignment]
    await worker.look()
    (job,) = workshop.jobs(batch)
    assert (job.new.model, job.new.path, job.new.custom_id) == ("m", batch.new.endpoint, "a")


@pytest.mark.parametrize(
    "principal",
    [
        Principal("k", "name", "t"),
        Principal("k", "name", "t", where_of({"region": ["eu", "uk"]}), limited(["a*"], ["chat"], ["batch"])),
    ],
)
def test_who_asked_is_kept_with_what_it_may(principal: Principal) -> None:
    assert principal_of(describe_principal(principal)) == principal
