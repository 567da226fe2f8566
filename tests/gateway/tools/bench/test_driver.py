"""The load against a server in this process: real sockets, an answer as each test wants it."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gateway.tools.bench.driver import Driver, models_of
from gateway.tools.bench.plan import Arrivals, BenchPlan, BenchTarget, TargetUnusable
from gateway.tools.bench.prompts import bodies, made_prompts
from gateway.tools.bench.report import (
    bench_figures,
    line_of,
    progress_shown,
    summary_lines,
    times_table,
    warnings_of,
)
from gateway.tools.bench.tally import BenchTally

PLAN = BenchPlan(
    concurrency=4, arrivals=Arrivals.CONSTANT, requests=20, max_tokens=3, warmup_s=0.0, timeout_s=60.0
)
EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3}}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
Respond = Callable[[asyncio.StreamWriter, int], Any]
"""Answers the request with that number on a connection that stays open after it, unless it closes it."""


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def plain(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


async def right(writer: asyncio.StreamWriter, number: int) -> None:
    writer.write(STREAM + chunked(EVENT, EVENT, EVENT + USAGE, b"data: [DONE]\n\n"))


@asynccontextmanager
async def served(respond: Respond) -> AsyncIterator[BenchTarget]:
    numbers = iter(range(10**6))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                await respond(writer, next(numbers))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield BenchTarget("127.0.0.1", server.sockets[0].getsockname()[1], "/v1", None, "k")


def driver_of(target: BenchTarget, plan: BenchPlan) -> Driver:
    return Driver(target, plan, bodies(made_prompts(8, 0), plan, "m", {}))


async def load(respond: Respond, **changes: Any) -> tuple[BenchTally, dict[str, Any]]:
    plan = replace(PLAN, **changes)
    async with served(respond) as target:
        driver = driver_of(target, plan)
        tally = await driver.run()
        return tally, bench_figures(driver, plan, target, "m")


async def test_every_request_is_counted_with_its_tokens() -> None:
    tally, figures = await load(right)
    assert (tally.right, tally.failed, tally.cut) == (20, 0, 0)
    assert tally.first.count == tally.latency.count == 20
    assert (tally.prompt_tokens, tally.completion_tokens) == (40, 60)
    assert tally.gaps.count == 20 * 2, "of the two tokens after the first, neither of usage nor of [DONE]"
    assert figures["tokens"]["per_s"] * figures["window_s"] == pytest.approx(60)
    assert figures["tokens"]["counted_by"] == "server"
    assert [row[0] for row in times_table(figures)] == ["first token", "between tokens", "whole answer"]
    assert "20 right" in summary_lines(figures)[0]


async def test_answers_that_the_server_does_not_count_have_the_tokens_of_those_that_it_does() -> None:
    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        ends = (EVENT + USAGE, EVENT)[number % 2]
        writer.write(STREAM + chunked(EVENT, EVENT, ends, b"data: [DONE]\n\n"))

    tally, figures = await load(respond, concurrency=1, requests=20)
    assert (tally.right, tally.uncounted, tally.completion_tokens) == (20, 10, 30)
    assert figures["tokens"]["per_s"] * figures["window_s"] == pytest.approx(60)


async def test_errors_are_told_apart() -> None:
    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        if number % 4 == 0:
            writer.write(plain("429 Busy", b'{"error": {"message": "later", "code": "queue_full"}}'))
        elif number % 4 == 1:
            writer.write(STREAM + b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
            writer.close()
        elif number % 4 == 2:
            writer.write(b"what?\r\n\r\n")
        else:
            writer.write(STREAM + chunked(EVENT))

    tally, figures = await load(respond, concurrency=1, requests=8)
    assert tally.right == 0
    assert dict(tally.errors) == {
        "HTTP 429 queue_full": 2,
        "connection lost": 2,
        "malformed": 2,
        "unfinished": 2,
    }
    assert any("2 × HTTP 429 queue_full: later" in line for line in warnings_of(figures))


async def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        await asyncio.sleep(60)

    tally, _ = await load(respond, concurrency=2, requests=2, timeout_s=0.05)
    assert dict(tally.errors) == {"timeout": 2}


async def test_a_kept_connection_that_the_server_closed_is_no_error() -> None:
    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        await right(writer, number)
        writer.close()

    tally, _ = await load(respond, concurrency=1, requests=5)
    assert (tally.right, tally.failed) == (5, 0)


async def test_a_body_that_ends_with_its_connection_is_whole() -> None:
    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\n\r\n{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}')
        writer.close()

    tally, figures = await load(respond, stream=False, requests=4)
    assert (tally.right, tally.completion_tokens) == (4, 8)
    assert figures["first_token_s"] is None


async def test_nobody_there_is_an_error_of_each_request() -> None:
    async with served(right) as target:
        pass
    tally = await driver_of(target, replace(PLAN, requests=3, concurrency=3)).run()
    assert dict(tally.errors) == {"cannot connect": 3}


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
async def test_a_name_that_no_resolver_can_be_asked_for_is_an_error_of_each_request(host: str) -> None:
    target = BenchTarget(host, 80, "/v1", None, "k")
    tally = await driver_of(target, replace(PLAN, requests=3, concurrency=3)).run()
    assert dict(tally.errors) == {"cannot connect": 3}
    with pytest.raises(TargetUnusable, match="cannot connect"):
        await models_of(target, 60.0)


async def test_an_open_loop_counts_from_when_a_request_was_meant_to_start() -> None:
    """One slow answer holds up those behind it, and their latency says so."""

    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 0:
            await asyncio.sleep(0.3)
        await right(writer, number)

    tally, figures = await load(respond, concurrency=1, rate=100.0, requests=20)
    assert tally.right == 20
    assert tally.latency.percentile_s(0.5) > 0.1
    assert any("after they were meant to be" in line for line in warnings_of(figures))


async def test_a_worker_that_the_warm_up_kept_too_long_sends_what_counts_all_the_same() -> None:
    """An overloaded endpoint has not answered the warm-up when the window is over."""
    asked = 0

    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        nonlocal asked
        asked += 1
        if number == 0:
            await asyncio.sleep(60)
        await right(writer, number)

    async with asyncio.timeout(PLAN.timeout_s / 2):
        tally, figures = await load(
            respond, concurrency=1, rate=50.0, requests=None, warmup_s=0.05, duration_s=0.3
        )
    assert tally.right == 15, "those meant to start from 60 ms to 340 ms"
    assert asked == 16, "the others of the warm-up are not sent any more"
    assert any("after they were meant to be" in line for line in warnings_of(figures))


async def test_warm_up_is_not_counted() -> None:
    """A request of the warm-up may end after it, on a busy machine: then only the pace counts its answer."""
    asked = 0

    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        nonlocal asked
        asked += 1
        await right(writer, number)

    tally, _ = await load(respond, warmup_s=0.2, rate=50.0, requests=5)
    assert tally.right == tally.latency.count == 5 < asked
    assert tally.window_answers <= asked


async def test_a_duration_ends_the_load_and_is_what_rates_are_over() -> None:
    tally, figures = await load(right, requests=None, duration_s=0.3)
    assert figures["window_s"] > 0.29
    assert figures["requests"]["per_s"] == tally.window_answers / figures["window_s"]
    assert tally.right >= tally.window_answers - 4


async def test_a_window_that_opened_late_is_as_long_as_was_asked_for(monkeypatch: Any) -> None:
    """On a busy machine the load may have begun long before its timer gets its turn."""
    opened = Driver._open_window

    def late(driver: Driver) -> None:
        if not driver._window:
            time.sleep(0.2)
        opened(driver)

    monkeypatch.setattr(Driver, "_open_window", late)
    _, figures = await load(right, requests=None, duration_s=0.3)
    assert figures["window_s"] > 0.29


async def test_an_open_loop_of_few_requests_lasts_as_long_as_was_asked_for() -> None:
    """The last of them is over long before the duration is: rates are over all of it."""
    tally, figures = await load(right, requests=None, rate=4.0, duration_s=0.45)
    assert tally.right == 2
    assert figures["window_s"] > 0.44


async def test_streams_longer_than_what_counts_still_tell_their_pace() -> None:
    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(STREAM)
        while not writer.is_closing():  # it never ends by itself
            writer.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
            await asyncio.sleep(0.01)

    async with asyncio.timeout(PLAN.timeout_s / 2):  # those of the warm-up are not waited for
        tally, figures = await load(respond, requests=None, warmup_s=0.1, duration_s=1.5)
    assert (tally.right, tally.failed) == (0, 0)
    assert figures["gap_s"]["p50"] > 0.005
    assert figures["tokens"]["per_s"] > 0
    assert any("longer than --duration" in line for line in warnings_of(figures))


async def test_stopping_early_tells_what_was_cut_off() -> None:
    begun = asyncio.Event()

    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        if number < 3:
            await right(writer, number)
        else:
            begun.set()
            await asyncio.sleep(60)

    async with served(respond) as target:
        driver = driver_of(target, replace(PLAN, concurrency=1))
        running = asyncio.create_task(driver.run())
        await begun.wait()
        driver.stop()
        tally = await running
    assert (tally.right, tally.failed, tally.cut) == (3, 0, 1)


async def test_models_are_asked_for_with_the_key() -> None:
    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(plain("200 OK", b'{"data": [{"id": "a"}, {"id": "b"}, {}]}'))

    async with served(respond) as target:
        assert await models_of(target, 60.0) == ["a", "b"]


@pytest.mark.parametrize("body", [b'{"data": 5}', b"{}", b'{"data": ["a"]}'])
async def test_a_list_of_models_that_is_none_offers_none(body: bytes) -> None:
    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(plain("200 OK", body))

    async with served(respond) as target:
        assert await models_of(target, 60.0) == []


async def test_a_long_list_of_models_is_read_whole() -> None:
    listed = [b'{"id": "model-%d"}' % number for number in range(100)]
    pieces = [b'{"data": [', *(each + b"," for each in listed[:-1]), listed[-1], b"]}"]

    async def respond(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(*pieces))

    async with served(respond) as target:
        assert len(await models_of(target, 60.0)) == 100


def test_kinds_of_errors_are_bounded() -> None:
    from gateway.tools.bench.plan import RequestFailed

    tally = BenchTally()
    for number in range(100):
        tally.add_failure(RequestFailed(f"kind {number}", "said"))
    assert len(tally.errors) == 33
    assert tally.errors["other"] == 68


def test_a_line_of_progress_says_where_it_stands() -> None:
    tally = BenchTally()
    tally.running, tally.right, tally.window_answers, tally.window_events = 3, 10, 10, 400
    assert line_of(tally, replace(PLAN, duration_s=8.0), 2.0) == (
        "2 of 8 s, 3 running, 10 right, 5.0 requests/s, 200 tokens/s"
    )
    assert line_of(tally, replace(PLAN, warmup_s=5.0), -3.0) == "warm-up, 3 s left; 3 running"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_on_a_terminal_one_line_is_written_again_and_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("gateway.tools.bench.report.TERMINAL_S", 0.01)
    stream = _Terminal()
    async with served(right) as target:
        driver = driver_of(target, replace(PLAN, requests=None, duration_s=60.0))
        async with progress_shown(driver, PLAN, stream):
            running = asyncio.create_task(driver.run())
            while stream.getvalue().count("requests/s") < 2:  # noqa: ASYNC110  a terminal does not tell
                await asyncio.sleep(0.005)
            driver.stop()
            await running
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
    assert stream.getvalue().count("requests/s") >= 2
