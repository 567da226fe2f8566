"""``trunkline batch`` against the gateway's own surface, whose jobs the test runs."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli import batch as command
from gateway.cli.batch import register
from gateway.cli_support import asking_again
from gateway.domain.request import Principal
from gateway.jobs.batches.window import WindowCheck
from gateway.storage import Store
from gateway.storage.errors import UnknownRecord
from tests.gateway.api.support import KEY, FakeKeys, Surface, served
from tests.gateway.jobs.batches.workshop import KnownSpeeds, Workshop, jsonl, request_line


@dataclass(frozen=True)
class Run:
    """``trunkline batch ARGUMENTS`` in a thread."""

    app: typer.Typer
    url: str

    def __call__(self, *arguments: str) -> "asyncio.Future[Result]":
        where = () if "--url" in arguments else ("--url", self.url)
        given = ["batch", *arguments, *where]
        return asyncio.ensure_future(asyncio.to_thread(CliRunner().invoke, self.app, given))


@pytest.fixture
async def workshop(tmp_path: Path) -> AsyncIterator[Workshop]:
    with Store.open(tmp_path / "state") as store:
        yield Workshop(tmp_path, store)


@pytest.fixture
async def run(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    monkeypatch.setenv("TRUNKLINE_KEY", KEY)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(command, "POLL_S", 0.02)
    app = typer.Typer()
    register(app)
    keys = FakeKeys(Principal("k", "key", "t"))
    async with served(Surface(files=workshop.files, batches=workshop.service, keys=keys)) as address:
        yield Run(app, f"http://{address}")


@asynccontextmanager
async def breaking(url: str, request: bytes, times: int) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A way to ``url`` that is cut once the gateway has answered a request of this first line, so many times;
    and the keys that such requests had."""
    left, keys = times, list[bytes]()
    host, _, port = url.removeprefix("http://").partition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        there, onward = await asyncio.open_connection(host, int(port))
        head = await reader.readuntil(b"\r\n\r\n")
        onward.write(head)

        async def pass_on() -> None:
            while piece := await reader.read(65536):
                onward.write(piece)
                await onward.drain()

        passing = asyncio.create_task(pass_on())
        answer = await there.read()  # the client wants the connection closed
        passing.cancel()
        onward.close()
        if head.startswith(request):
            keys.append(head.lower().partition(b"idempotency-key: ")[2].partition(b"\r\n")[0])
            left -= 1
        if not head.startswith(request) or left < 0:
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", keys


async def working(workshop: Workshop, command: "asyncio.Future[Result]", status: int = 200) -> Result:
    """Bring batches on until the command is over."""
    worker = workshop.worker()
    async with asyncio.timeout(60):
        while not command.done():
            await worker.look()
            await workshop.answer(status=status)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(command), 0.02)
    return await command


def said(out: Path) -> list[Any]:
    return [json.loads(line)["response"]["body"]["said"] for line in out.read_text().splitlines()]


async def test_prompts_are_answered_in_their_order(run: Run, workshop: Workshop, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_bytes(b'{"prompt": "one"}\n\ntwo words\n{"messages": [], "custom_id": "mine"}\n"three"\n')
    done = await working(workshop, run("run", str(prompts), "--model", "m", "--out", str(out), "--json"))
    assert done.exit_code == 0, done.output
    assert said(out) == ["line-1", "line-3", "mine", "line-5"]
    assert json.loads(done.stdout)["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
    assert "completed: 4 of 4 answered" in done.stderr
    assert not out.with_name("out.jsonl.partial").exists()


async def test_requests_that_fail_are_lines_too_and_end_the_command_with_1(
    run: Run, workshop: Workshop, tmp_path: Path
) -> None:
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_bytes(jsonl(*(request_line(f"c{number}") for number in range(3))))
    done = await working(workshop, run("run", str(requests), "--out", str(out)), status=400)
    assert done.exit_code == 1
    assert said(out) == ["c0", "c1", "c2"]


async def test_a_bad_file_is_told_with_its_lines(run: Run, workshop: Workshop, tmp_path: Path) -> None:
    requests, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_bytes(jsonl(request_line("a"), request_line("a")))
    done = await working(workshop, run("run", str(requests), "--out", str(out)))
    assert done.exit_code == 1
    assert "line 2: The custom_id 'a'" in done.stderr
    assert out.read_bytes() == b""


async def test_no_batch_is_made_whose_answers_could_not_be_written(
    run: Run, workshop: Workshop, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("hello\n")
    for out in (tmp_path / "nowhere" / "out.jsonl", prompts / "out.jsonl", tmp_path):
        for asked in (("run", str(prompts), "--model", "m"), ("wait", "batch_none")):
            refused = await working(workshop, run(*asked, "--out", str(out)))
            assert (refused.exit_code, "cannot write" in refused.stderr) == (2, True), refused.output
    assert not workshop.store.batches.list("t")


async def test_a_disk_that_is_full_in_the_end_is_told_with_how_to_come_back(
    run: Run, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("hello\n")
    opened = Path.open

    def open_full(path: Path, *how: Any) -> Any:
        return opened(Path("/dev/full") if path.suffix == ".ordered" else path, *how)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_full)
        failed = await working(workshop, run("run", str(prompts), "--model", "m", "--out", str(out)))
    assert failed.exit_code == 1
    assert f"trunkline: cannot write {out} (No space left on device)" in failed.stderr
    (batch,) = workshop.store.batches.list("t")
    assert f"Come back with: trunkline batch wait {batch.id} --out {out}" in failed.stderr
    assert (await run("wait", batch.id, "--out", str(out))).exit_code == 0
    assert said(out) == ["line-1"]


async def test_a_window_that_is_too_short_is_told_with_the_way_to_try(
    run: Run, workshop: Workshop, tmp_path: Path
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("hello\n")
    workshop.outlook = KnownSpeeds(90_000.0, 1)
    workshop.window = WindowCheck(workshop.store.batches, workshop.outlook, lambda: workshop.now_s)
    asked = ("run", str(prompts), "--model", "m", "--out", str(out))
    done = await working(workshop, run(*asked))
    assert done.exit_code == 1
    assert "The batch would take about 25 hours on the slot that 'm' has now" in done.stderr
    assert "run the command again with --try-anyway" in done.stderr
    tried = await working(workshop, run(*asked, "--try-anyway"))
    assert (tried.exit_code, said(out)) == (0, ["line-1"])


async def test_who_leaves_is_told_how_to_come_back(
    run: Run, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("hello\n")

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command, "time", SimpleNamespace(sleep=interrupted))
        left = await run("run", str(prompts), "--model", "m", "--out", str(out))
    assert left.exit_code == 1
    (batch,) = workshop.store.batches.list("t")
    assert f"{batch.id} goes on. Come back with: trunkline batch wait {batch.id} --out {out}" in left.stderr
    assert not out.exists()
    done = await working(workshop, run("wait", batch.id, "--out", str(out)))
    assert (done.exit_code, said(out)) == (0, ["line-1"])


@pytest.mark.parametrize("request_line", [b"POST /v1/files ", b"POST /v1/batches "])
async def test_a_request_whose_answer_is_lost_is_made_again_and_makes_one_thing(
    run: Run, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_line: bytes
) -> None:
    monkeypatch.setattr(asking_again, "AGAIN_S", 0.01)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("hello\n")
    async with breaking(run.url, request_line, 2) as (url, keys):
        done = await working(
            workshop, run("run", str(prompts), "--model", "m", "--out", str(out), "--url", url)
        )
        assert (done.exit_code, said(out)) == (0, ["line-1"])
        assert "broke off before an answer came; asking again" in done.stderr
        assert (len(keys), len(set(keys))) == (3, 1)
    assert len(workshop.store.batches.list("t")) == 1
    assert len(workshop.store.files.list("t", purpose="batch")) == 1


async def test_a_batch_of_which_no_answer_comes_is_gone_on_with_by_its_key(
    run: Run, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking_again, "AGAIN_S", 0.01)
    monkeypatch.setattr(asking_again, "PATIENCE_S", 0.0)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("hello\n")
    asked = ("run", str(prompts), "--model", "m", "--out", str(out))
    async with breaking(run.url, b"POST /v1/batches ", 9) as (url, _):
        left = await run(*asked, "--url", url)
    assert left.exit_code == 1
    assert "no plain HTTP" in left.stderr
    told = left.stderr.partition("the same command with ")[2].split()[:2]
    assert told[0] == "--idempotency-key"
    done = await working(workshop, run(*asked, *told))
    assert (done.exit_code, said(out)) == (0, ["line-1"])
    assert len(workshop.store.batches.list("t")) == 1
    prompts.write_text("another\n")
    other = await run(*asked, *told)
    assert other.exit_code == 1
    assert "was used before for another request" in other.stderr


async def test_a_gateway_that_is_away_while_a_batch_runs_is_waited_for(
    run: Run, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking_again, "AGAIN_S", 0.01)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("hello\n")
    asked = ("run", str(prompts), "--model", "m", "--out", str(out))
    async with breaking(run.url, b"GET /v1/batches/", 2) as (url, _):
        done = await working(workshop, run(*asked, "--url", url))
        assert (done.exit_code, said(out)) == (0, ["line-1"])
    monkeypatch.setattr(asking_again, "PATIENCE_S", 0.0)
    async with breaking(run.url, b"GET /v1/batches/", 99) as (url, _):
        left = await run(*asked, "--url", url)
    assert left.exit_code == 1
    batch = workshop.store.batches.list("t")[0]
    assert f"Come back with: trunkline batch wait {batch.id} --out {out} --url {url}" in left.stderr


async def test_answers_are_there_as_they_come_and_a_command_that_was_left_goes_on(
    run: Run, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    partial = tmp_path / "out.jsonl.partial"
    prompts.write_text("one\ntwo\nthree\nfour\n")
    worker, looked = workshop.worker(), 0
    loop = asyncio.get_running_loop()

    async def bring_on() -> None:
        await worker.look()
        await workshop.answer(1)

    def sleep(seconds: float) -> None:
        nonlocal looked
        looked += 1
        if looked == 4:
            raise KeyboardInterrupt
        asyncio.run_coroutine_threadsafe(bring_on(), loop).result(30)

    with monkeypatch.context() as patch:
        patch.setattr(command, "time", SimpleNamespace(sleep=sleep))
        left = await run("run", str(prompts), "--model", "m", "--out", str(out))
    assert f"3 answers so far are in {partial}" in left.stderr
    assert said(partial) == ["line-1", "line-2", "line-3"]
    assert not out.exists()
    (batch,) = workshop.store.batches.list("t")
    with partial.open("ab") as written:
        written.write(b'{"id": "broken o')
    done = await working(workshop, run("wait", batch.id, "--out", str(out), "--json"))
    assert (done.exit_code, said(out)) == (0, ["line-1", "line-2", "line-3", "line-4"])
    assert json.loads(done.stdout)["status"] == "completed"
    assert not partial.exists()


async def test_a_gateway_that_gives_nothing_before_the_end_is_waited_for(
    run: Run, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("one\ntwo\n")
    asked: list[object] = []

    def results(*given: object) -> None:
        asked.append(given)
        raise UnknownRecord("there is nothing here")

    monkeypatch.setattr(workshop.service, "results", results)
    worker = workshop.worker()
    waiting = run("run", str(prompts), "--model", "m", "--out", str(out))
    async with asyncio.timeout(60):
        while not asked:
            await worker.look()
            if not any(
                job.state.is_final
                for batch in workshop.store.batches.list("t")
                for job in workshop.jobs(batch)
            ):
                await workshop.answer(1)
            await asyncio.sleep(0.02)
    done = await working(workshop, waiting)
    assert (done.exit_code, said(out)) == (0, ["line-1", "line-2"])


async def test_batches_are_listed_shown_and_cancelled(run: Run, workshop: Workshop) -> None:
    batch = await workshop.create(jsonl(request_line("a")))
    await workshop.worker().look()
    listed = await run("list")
    assert listed.stdout.splitlines()[1].split()[:6] == [batch.id, "in_progress", "m", "0", "0", "1"]
    assert [each["id"] for each in json.loads((await run("list", "--json")).stdout)] == [batch.id]
    assert json.loads((await run("show", batch.id)).stdout)["status"] == "in_progress"
    cancelled = await run("cancel", batch.id)
    assert (cancelled.exit_code, cancelled.stderr.strip()) == (0, f"{batch.id} is cancelling")
    unknown = await run("show", "batch_none")
    assert (unknown.exit_code, "There is no batch batch_none" in unknown.stderr) == (1, True)


@pytest.mark.parametrize(
    ("content", "arguments", "code", "why"),
    [
        (b"hello\n", (), 2, "line 1 names no model"),
        (b'{"prompt": \n', ("--model", "m"), 2, "line 1 begins as JSON and is none"),
        (b"\xff\n", ("--model", "m"), 2, "line 1 is no text in UTF-8"),
        (b'{"x": 1}\n', ("--model", "m"), 2, "line 1 has no prompt, messages, input or body"),
        (b"hello\n", ("--endpoint", "/v1/rerank"), 2, "write one of /v1/chat/completions"),
        (b"hello\n", ("--model", "m", "--window", "soon"), 2, "must be 24h"),
    ],
)
async def test_what_cannot_be_sent_is_named(
    run: Run, tmp_path: Path, content: bytes, arguments: tuple[str, ...], code: int, why: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_bytes(content)
    done = await run("run", str(prompts), "--out", str(tmp_path / "out"), *arguments)
    assert (done.exit_code, why in " ".join(done.stderr.replace("│", "").split())) == (code, True), (
        done.stderr
    )
    assert not (tmp_path / "out").exists()
