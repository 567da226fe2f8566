"""Workers ask each other, and name who does not answer."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.runtime.workers.siblings import Json, Siblings

NAMES = ["h-0", "h-1", "h-2"]


async def echo(asked: Json) -> Json:
    return {"heard": asked}


@asynccontextmanager
async def workers(state: Path, *names: str, answer_s: float = 5.0) -> AsyncIterator[list[Siblings]]:
    found = [Siblings(state, name, NAMES, answer_s) for name in names]
    for each in found:
        each.answer("echo", echo)
        await each.start()
    try:
        yield found
    finally:
        for each in found:
            each.close()


async def test_all_others_are_asked_and_who_is_not_there_is_named(tmp_path: Path, no_leaks: None) -> None:
    async with workers(tmp_path, "h-0", "h-2") as (first, _):
        answers = await first.ask_all("echo", value=1)
    assert answers.found == {"h-2": {"heard": {"value": 1}}}
    assert answers.missing == ["h-1"]


async def test_only_the_owner_can_reach_them(tmp_path: Path) -> None:
    async with workers(tmp_path, "h-0"):
        assert (tmp_path / "workers").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "workers" / "h-0.sock").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "workers") == []


async def test_a_long_path_of_the_state_is_no_trouble(tmp_path: Path) -> None:
    state = tmp_path / ("deep" * 40)
    state.mkdir()
    async with workers(state, "h-0", "h-1") as (first, _):
        assert "h-1" in (await first.ask_all("echo")).found


async def test_long_answers_arrive_whole(tmp_path: Path) -> None:
    async with workers(tmp_path, "h-0", "h-1") as (first, second):

        async def much(asked: Json) -> Json:
            return {"text": "x" * 3_000_000}

        second.answer("much", much)
        assert len((await first.ask_all("much")).found["h-1"]["text"]) == 3_000_000


async def test_one_that_hangs_is_missing_in_time(tmp_path: Path) -> None:
    async with workers(tmp_path, "h-0", "h-1", answer_s=0.2) as (first, second):

        async def hang(asked: Json) -> Json:
            await asyncio.Event().wait()
            return {}

        second.answer("hang", hang)
        with capture_logs() as logs:
            answers = await asyncio.wait_for(first.ask_all("hang"), 60)
    assert answers.missing == ["h-1", "h-2"]
    assert logs[0]["event"] == "sibling_silent"


@pytest.mark.parametrize("data", [b"", b"no json\n", b'{"question": "unknown"}\n', b"[]\n", b"x" * 200_000])
async def test_a_question_that_is_none_harms_nobody(tmp_path: Path, data: bytes) -> None:
    async with workers(tmp_path, "h-0", "h-1") as (first, _):
        with socket.socket(socket.AF_UNIX) as asker:
            asker.setblocking(False)
            await asyncio.get_running_loop().sock_connect(asker, str(tmp_path / "workers" / "h-1.sock"))
            await asyncio.get_running_loop().sock_sendall(asker, data)
            if not data.endswith(b"\n"):
                asker.shutdown(socket.SHUT_WR)
            try:
                assert await asyncio.get_running_loop().sock_recv(asker, 100) == b""
            except ConnectionError:
                pass
        assert "h-1" in (await first.ask_all("echo")).found


async def test_what_a_killed_worker_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "workers" / "h-1.sock"))
    async with workers(tmp_path, "h-0") as (first,):
        assert (await first.ask_all("echo")).missing == ["h-1", "h-2"]
        async with workers(tmp_path, "h-1"):
            assert (await first.ask_all("echo")).missing == ["h-2"]
