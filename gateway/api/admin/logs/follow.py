"""The lines of all processes of the gateway as one stream of events.

Nothing is queued for a reader: what it has not read yet stays where lines are kept anyway, and what is gone
from there is counted and told.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import orjson

from gateway.api.admin.fleet import OtherProcesses, usable_answers
from gateway.api.admin.logs.line_filter import LineFilter, time_of
from gateway.api.admin.logs.source import LogSource, WantedLines
from gateway.domain.errors import Overloaded
from gateway.observability.log_ring import LogPosition

Json = dict[str, Any]

TICK_S = 1.0
"""Other processes are asked so often, and it is looked whether this one ends."""
GATHER_S = 0.1
"""Lines of so long go out together."""
QUIET_S = 10.0
"""A stream that has nothing else to tell for so long tells how far it has come."""
MOST_FOLLOWERS = 16
MOST_CURSOR_CHARS = 8192

Cursor = Mapping[str, LogPosition]
"""How far somebody has read, by process."""


class _Told(NamedTuple):
    """What all processes say to one question."""

    by_process: dict[str, WantedLines]
    missing: dict[str, str]
    """Those that do not answer, and why."""


class LogFollowing:
    """One for a process. Belongs to the event loop's thread."""

    def __init__(
        self,
        source: LogSource,
        process: str,
        siblings: OtherProcesses | None = None,
        *,
        ends: Callable[[], bool] = bool,
        tick_s: float = TICK_S,
    ) -> None:
        """``process`` is this one's name; ``ends`` says that it is about to end, and its streams with it."""
        self._source = source
        self._process = process
        self._siblings = siblings
        self._ends = ends
        self._tick_s = tick_s
        self.followers = 0
        if siblings is not None:
            siblings.answer("logs", self._answer)

    async def follow(self, query: Mapping[str, str], last_id: str = "") -> AsyncGenerator[bytes]:
        """Pieces of the event stream: lines of before, or those behind ``last_id``, the id of the last event
        that the reader had; then, if it follows, those that come, until the process ends. Raises
        BadLineFilter, and Overloaded."""
        wanted = LineFilter.read(query)
        if self.followers >= MOST_FOLLOWERS:
            raise Overloaded(f"{MOST_FOLLOWERS} readers are at the log here already.")
        self.followers += 1
        try:
            with self._woken() as lines_came:
                cursor = dict(read_cursor(last_id))
                told = await self._ask(query, wanted, cursor)
                for piece in _events(told, cursor, {}, None if last_id else wanted.lines):
                    yield piece
                if wanted.follow:
                    async for piece in self._those_that_come(query, wanted, cursor, told, lines_came):
                        yield piece
        finally:
            self.followers -= 1

    async def _those_that_come(
        self,
        query: Mapping[str, str],
        wanted: LineFilter,
        cursor: dict[str, LogPosition],
        told: _Told,
        lines_came: asyncio.Event,
    ) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        said_s = loop.time()
        while True:
            ends = self._ends()  # what is logged until then is told
            if not any(each.more for each in told.by_process.values()) and not ends:
                await self._pause(lines_came)
            before, told = told, await self._ask(query, wanted, cursor)
            for piece in _events(told, cursor, before.missing, None):
                said_s = loop.time()
                yield piece
            if ends:
                return
            if loop.time() - said_s >= QUIET_S:
                said_s = loop.time()
                yield _event("lines", b"[]", cursor)

    async def _pause(self, lines_came: asyncio.Event) -> None:
        """Until there may be something. Where others are asked, lines of one second are put in order."""
        if self._siblings is not None:
            await asyncio.sleep(self._tick_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._tick_s):
                await lines_came.wait()
                await asyncio.sleep(min(GATHER_S, self._tick_s / 10))
        lines_came.clear()

    @contextlib.contextmanager
    def _woken(self) -> Iterator[asyncio.Event]:
        """An event that is set when a line comes, on whichever thread."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not came.is_set():
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(came.set)

        self._source.ring.watch(wake)
        try:
            yield came
        finally:
            self._source.ring.unwatch(wake)

    # --- All processes ---

    async def _ask(self, query: Mapping[str, str], wanted: LineFilter, cursor: Cursor) -> _Told:
        """Those behind ``cursor``; where that is empty, the last ones."""
        told = {self._process: await self._own(wanted, cursor)}
        if self._siblings is None:
            return _Told(told, {})
        asked = {"filter": orjson.dumps(dict(query)).decode(), "after": write_cursor(cursor)}
        answers = usable_answers(await self._siblings.ask_all("logs", **asked), _read_answer)
        told |= {name: _read_answer(answer) for name, answer in answers.found.items()}
        missing = {name: answers.reasons.get(name, "it does not answer") for name in answers.missing}
        return _Told(told, missing | dict(self._siblings.gone()))

    async def _own(self, wanted: LineFilter, cursor: Cursor) -> WantedLines:
        if cursor:
            return await self._source.after(cursor.get(self._process), wanted)
        return await self._source.before(wanted)

    async def _answer(self, asked: Json) -> Json:
        """What a sibling asks. Raises BadLineFilter and ValueError."""
        query = orjson.loads(str(asked.get("filter", "{}")))
        told = await self._own(LineFilter.read(query), read_cursor(str(asked.get("after", ""))))
        return {
            "position": str(told.position),
            "lines": [line.decode() for line in told.lines],
            "dropped": told.dropped,
            "more": told.more,
        }


def _read_answer(answer: Json) -> WantedLines:
    """Raises KeyError, TypeError, ValueError and AttributeError for what is none."""
    lines = [str(line).encode() for line in answer["lines"]]
    for line in lines:
        orjson.loads(line)
    position = LogPosition.read(str(answer["position"]))
    return WantedLines(position, lines, int(answer["dropped"]), bool(answer["more"]))


def _events(
    told: _Told, cursor: dict[str, LogPosition], known_missing: Mapping[str, str], most: int | None
) -> Iterator[bytes]:
    """What was told, as events; ``cursor`` goes on behind it. ``most``: of the lines only so many, the last
    ones. What is said of the lines has the id from before: whoever comes back with that has not had them."""
    lines = [line for each in told.by_process.values() for line in each.lines]
    if len(told.by_process) > 1:
        lines.sort(key=lambda line: time_of(orjson.loads(line)))
    if most is not None:
        lines = lines[max(0, len(lines) - most) :]
    moved = any(cursor.get(name) != each.position for name, each in told.by_process.items())
    before, dropped = dict(cursor), False
    cursor.update({name: each.position for name, each in told.by_process.items()})
    for name, each in told.by_process.items():
        if each.dropped:
            dropped = True
            yield _event("dropped", orjson.dumps({"process": name, "lines": each.dropped}), before)
    if told.missing != known_missing:
        yield _event("missing", orjson.dumps(told.missing), before)
    if lines or dropped or (moved and most is not None):
        yield _event("lines", b"[%b]" % b",".join(lines), cursor)


def _event(name: str, data: bytes, cursor: Cursor) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (write_cursor(cursor).encode(), name.encode(), data)


def write_cursor(cursor: Cursor) -> str:
    """As the id of an event."""
    return ",".join(f"{quote(name, safe='')}={position}" for name, position in cursor.items())


def read_cursor(text: str) -> Cursor:
    """Of an id; empty where it is none, because some other server may have given it."""
    if len(text) > MOST_CURSOR_CHARS:
        return {}
    found = {}
    for part in filter(None, text.split(",")):
        name, _, position = part.partition("=")
        try:
            found[unquote(name)] = LogPosition.read(position)
        except ValueError:
            return {}
    return found
