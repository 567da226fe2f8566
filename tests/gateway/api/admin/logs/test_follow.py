"""One stream of the lines of all processes."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from gateway.api.admin.logs import follow as module
from gateway.api.admin.logs.follow import LogFollowing, read_cursor, write_cursor
from gateway.api.admin.logs.line_filter import BadLineFilter
from gateway.api.admin.logs.source import LogSource
from gateway.domain.errors import Overloaded
from gateway.observability.log_ring import LogPosition, LogRing
from gateway.runtime.workers.siblings import SiblingAnswers

FOLLOW = {"follow": "true"}


class Reader:
    """Follows, and keeps what it is told."""

    def __init__(self, following: LogFollowing, query: Mapping[str, str] = FOLLOW, last_id: str = "") -> None:
        self.pieces: AsyncGenerator[bytes] = following.follow(query, last_id)
        self.last_id = last_id
        self.lines: list[str] = []
        self.others: list[tuple[str, Any]] = []

    async def take(self) -> bool:
        """False: it is over."""
        piece = await asyncio.wait_for(anext(self.pieces, b""), 60)
        if not piece:
            return False
        fields = dict(line.split(": ", 1) for line in piece.decode().strip().split("\n"))
        self.last_id = fields["id"]
        data = json.loads(fields["data"])
        if fields["event"] == "lines":
            self.lines += [each["event"] for each in data]
        else:
            self.others.append((fields["event"], data))
        return True

    async def until(self, *lines: str) -> None:
        while self.lines != list(lines):
            assert await self.take()


class Process:
    """One of several, with its log."""

    def __init__(self, name: str, **options: Any) -> None:
        self.ring = LogRing(options.pop("limit_bytes", 100_000))
        self.following = LogFollowing(LogSource(self.ring), name, tick_s=0.01, **options)

    def log(self, *events: str, at: str = "2026-05-01T12:00:00Z") -> None:
        lines = [json.dumps({"event": each, "level": "info", "timestamp": at}) for each in events]
        self.ring.add("".join(line + "\n" for line in lines).encode(), len(lines))


async def test_the_last_lines_come_and_then_those_that_are_written() -> None:
    process = Process("p")
    process.log("one", "two", "three")
    reader = Reader(process.following, {"lines": "2", **FOLLOW})
    await reader.until("two", "three")
    process.log("four")
    await reader.until("two", "three", "four")
    assert process.following.followers == 1
    await reader.pieces.aclose()
    assert process.following.followers == 0
    ended = Reader(process.following, {"lines": "1"})
    assert [await ended.take(), await ended.take()] == [True, False]
    assert ended.lines == ["four"]


async def test_who_comes_back_has_no_line_twice_and_none_is_lost() -> None:
    process = Process("p")
    process.log("one")
    first = Reader(process.following)
    await first.until("one")
    await first.pieces.aclose()
    process.log("two")
    back = Reader(process.following, FOLLOW, first.last_id)
    await back.until("two")
    await back.pieces.aclose()
    again = Process("p")  # it was started again
    again.log("three", "four")
    new = Reader(again.following, FOLLOW, back.last_id)
    await new.until("three", "four")
    assert new.others == []
    await new.pieces.aclose()


async def test_lines_that_are_kept_no_more_are_counted() -> None:
    process = Process("p", limit_bytes=300)
    process.log("one")
    first = Reader(process.following)
    await first.until("one")
    await first.pieces.aclose()
    process.log(*(str(number) for number in range(10)))
    back = Reader(process.following, FOLLOW, first.last_id)
    while not back.lines:
        await back.take()
    assert back.others == [("dropped", {"process": "p", "lines": 10 - len(back.lines)})]
    assert back.lines[-1] == "9"
    await back.pieces.aclose()


async def test_who_leaves_before_the_lines_that_were_announced_has_them_later() -> None:
    process = Process("p", limit_bytes=300)
    process.log("one")
    first = Reader(process.following)
    await first.until("one")
    await first.pieces.aclose()
    process.log(*(str(number) for number in range(10)))
    back = Reader(process.following, FOLLOW, first.last_id)
    assert await back.take()
    assert [name for name, _ in back.others] == ["dropped"]
    assert back.last_id == first.last_id
    await back.pieces.aclose()
    again = Reader(process.following, FOLLOW, back.last_id)
    while not again.lines:
        await again.take()
    assert again.others == back.others
    assert again.lines[-1] == "9"
    await again.pieces.aclose()


async def test_lines_of_the_end_of_a_process_are_told_before_its_stream_ends() -> None:
    ending: list[bool] = []
    process = Process("p", ends=lambda: bool(ending))
    reader = Reader(process.following)
    await reader.take()
    ending.append(True)
    process.log("draining")
    while await reader.take():
        pass
    assert reader.lines == ["draining"]


async def test_a_quiet_stream_tells_how_far_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    process = Process("p")
    reader = Reader(process.following, {"level": "error", **FOLLOW})
    await reader.take()
    process.log("unwanted")
    before = reader.last_id
    while reader.last_id == before:
        await reader.take()
    assert reader.lines == []
    await reader.pieces.aclose()


async def test_there_are_so_many_readers_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FOLLOWERS", 1)
    process = Process("p")
    reader = Reader(process.following)
    await reader.take()
    with pytest.raises(Overloaded):
        await Reader(process.following).take()
    with pytest.raises(BadLineFilter):
        await Reader(process.following, {"level": "loud"}).take()
    await reader.pieces.aclose()


class Others:
    """The other processes, by name; what is no process says that it cannot answer."""

    def __init__(self, **processes: Process | str) -> None:
        self.processes = processes
        self.silent: dict[str, str] = {}

    def answer(self, question: str, answerer: Any) -> None:
        assert question == "logs"

    def gone(self) -> Mapping[str, str]:
        return self.silent

    async def ask_all(self, question: str, **asked: Any) -> SiblingAnswers:
        found, missing = {}, {}
        for name, each in self.processes.items():
            if isinstance(each, str):
                missing[name] = each
            else:
                found[name] = await each.following._answer(asked)
        return SiblingAnswers(found, list(missing), missing)


async def test_lines_of_all_processes_come_in_the_order_of_their_times() -> None:
    other = Process("w2")
    others = Others(w2=other, w3="it hangs")
    own = Process("w1", siblings=others)
    own.log("a", at="2026-05-01T12:00:01Z")
    own.log("c", at="2026-05-01T12:00:03Z")
    other.log("old", at="2026-05-01T12:00:00Z")
    other.log("b", at="2026-05-01T12:00:02Z")
    reader = Reader(own.following, {"lines": "3", **FOLLOW})
    await reader.until("a", "b", "c")
    assert reader.others == [("missing", {"w3": "it hangs"})]
    other.log("d")
    own.log("e")
    while len(reader.lines) < 5:
        await reader.take()
    assert set(reader.lines[3:]) == {"d", "e"}
    others.processes["w3"] = third = Process("w3")
    third.log("f")
    while "f" not in reader.lines:
        await reader.take()
    assert reader.others[1:] == [("missing", {})]
    assert set(read_cursor(reader.last_id)) == {"w1", "w2", "w3"}
    await reader.pieces.aclose()


async def test_an_answer_that_cannot_be_read_is_that_of_no_process() -> None:
    class Odd(Others):
        async def ask_all(self, question: str, **asked: Any) -> SiblingAnswers:
            return SiblingAnswers({"w2": {"position": "a.1", "lines": ["no json"]}}, [], {})

    own = Process("w1", siblings=Odd())
    reader = Reader(own.following)
    await reader.take()
    assert reader.others[0][1]["w2"].startswith("it answers with something else")
    await reader.pieces.aclose()


def test_an_id_holds_the_positions_of_all_processes() -> None:
    cursor = {"host-1": LogPosition("a1", 5), "odd, =näme": LogPosition("b2", 0)}
    assert read_cursor(write_cursor(cursor)) == cursor
    for text in ("", "1f0c9a-17", "a=b", "x" * 9000, "host=a.1,other"):
        assert read_cursor(text) == {}
