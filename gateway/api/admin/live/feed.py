"""Frames of the stream of live events: each is made once for all pages, and only while one is open.

A page has room for one frame. What comes while it has not read that is dropped and counted, and a snapshot
follows, so a page that does not read costs no memory and misses no state.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import orjson
import structlog

from gateway.api.admin.fleet import OtherProcesses, usable_answers
from gateway.api.admin.live.merging import merge_happenings, merge_states
from gateway.api.admin.live.patch import Json, changes_between, merge_patch
from gateway.api.admin.live.state import MOST_FLOWS, MOST_REQUESTS, ProcessState
from gateway.domain.errors import Overloaded
from gateway.observability.gauges import Family, single

TICK_S = 1.0
MOST_PAGES = 64
KEPT_FRAMES = 60
"""Deltas that a page which reconnects can catch up with."""

KEPT_BYTES = 8 * 1024 * 1024
"""All of them together; the oldest go first."""

KEPT_CHANGES = 100

_log = structlog.get_logger(__name__)


class EventFrame(NamedTuple):
    number: int
    data: bytes


class Subscription:
    """One page."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        """What it has not taken yet: what it catches up with at its beginning, later one frame at most."""
        self.dropped = 0
        """Frames that it did not get since it took one."""
        self.wake = asyncio.Event()

    def offer(self, data: bytes) -> bool:
        """The next frame. False: it has no room for it."""
        if self.dropped or self.frames:
            self.dropped += 1
            return False
        self.frames.append(data)
        self.wake.set()
        return True


class EventFeed:
    """One for a process. Belongs to the event loop's thread."""

    def __init__(
        self,
        state: ProcessState,
        siblings: OtherProcesses | None = None,
        *,
        ends: Callable[[], bool] = bool,
        tick_s: float = TICK_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``ends`` says that the process is about to end, and its streams with it."""
        self._own = state
        self._siblings = siblings
        self._ends = ends
        self._tick_s = tick_s
        self._wall = wall
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._state: Json = {}
        self._live: list[Json] = []
        self._since: dict[str, int] = {}
        """By process, the number of the request that ended last."""
        self._changes: deque[Json] = deque(maxlen=KEPT_CHANGES)
        self._frames: deque[EventFrame] = deque()
        self._kept_bytes = 0
        self._snapshot: EventFrame | None = None
        self._pages: set[Subscription] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None] | None = None
        self.dropped = 0
        """Frames that pages did not read in time."""
        self.made = 0
        if siblings is not None:
            siblings.answer("live", self._answer)

    def figures(self) -> Iterable[Family]:
        """For the metrics."""
        dropped = "Frames of live events that pages did not read in time."
        yield single("event_frames_dropped", dropped, self.dropped, counter=True)
        yield single("event_pages", "Pages that follow live events.", len(self._pages))

    async def follow(self, last_id: str = "") -> AsyncGenerator[bytes]:
        """Pieces of the event stream for one page, until the process ends; the page closes the iterator.
        ``last_id`` is the id of the last event that it had. Raises Overloaded."""
        if len(self._pages) >= MOST_PAGES:
            raise Overloaded(f"{MOST_PAGES} pages follow live events here already.")
        page = Subscription()
        await self._begin(page)
        try:
            page.frames = deque(self._missed(last_id))
            page.dropped = 0
            while not self._ends():
                while page.frames:
                    yield page.frames.popleft()
                if page.dropped:
                    dropped, page.dropped = page.dropped, 0
                    yield b'event: dropped\ndata: {"frames":%d}\n\n' % dropped + self._snapshot_now()
                    continue
                page.wake.clear()
                await page.wake.wait()
        finally:
            self._leave(page)

    # --- Pages ---

    async def _begin(self, page: Subscription) -> None:
        """``page`` follows from now on; with the first of them frames begin to be made."""
        self._pages.add(page)
        if self._ticking is None:
            loop = asyncio.get_running_loop()
            self._begun = loop.create_future()
            self._ticking = loop.create_task(self._tick_on(self._begun))
        begun = self._begun
        try:
            if begun is not None:
                await asyncio.shield(begun)
        except BaseException:
            self._leave(page)
            raise

    def _leave(self, page: Subscription) -> None:
        self._pages.discard(page)
        if not self._pages and self._ticking is not None:
            self._ticking.cancel()
            self._ticking = self._begun = None
            self._frames.clear()
            self._kept_bytes, self._snapshot, self._state = 0, None, {}

    def _missed(self, last_id: str) -> list[bytes]:
        """What a page lacks that had ``last_id`` last: the deltas since, else everything."""
        epoch, _, number = last_id.partition("-")
        if epoch == self._epoch and number.isascii() and number.isdigit() and len(number) < 16:
            had = int(number)
            first = self._frames[0].number if self._frames else self._number + 1
            if first - 1 <= had <= self._number:
                return [frame.data for frame in self._frames if frame.number > had]
        return [self._snapshot_now()]

    # --- Frames ---

    async def _tick_on(self, begun: "asyncio.Future[None]") -> None:
        """Make frames until this is cancelled. ``begun`` is over with the first of them: whoever follows gets
        all of the state first, and then only what changes."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            try:
                await self._tick()
            except Exception:
                _log.exception("events_failed")
            else:
                _finish(begun)
            due_s = max(due_s + self._tick_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            if self._ends():
                _finish(begun)
                for page in self._pages:
                    page.wake.set()
                return

    async def _tick(self) -> None:
        """Make the frame of now, and offer it to all pages."""
        at_s = round(self._wall(), 3)
        state, told = await self._read()
        first = not self._state
        patch: Json = {} if first else merge_patch(self._state, state)
        changes = [] if first else list(changes_between(self._state, state, at_s))
        self._changes.extend(changes)
        frame: Json = {"at": at_s} | patch
        if changes:
            frame["changes"] = changes[-KEPT_CHANGES:]
        events = [] if first else self._events(told)
        if events:
            frame["requests"] = events[:MOST_REQUESTS]
        if left_out := int(told["left_out"]) + max(0, len(events) - MOST_REQUESTS):
            frame["requests_left_out"] = left_out
        if told["flow"]:
            frame["flow"] = told["flow"]
        if told["tokens"]:
            frame["tokens"] = told["tokens"]
        self._state, self._live, self._snapshot = state, told["live"], None
        self._number += 1
        self.made += 1
        if not first:
            self._send(self._encoded("delta", frame))

    def _send(self, data: bytes) -> None:
        self._frames.append(EventFrame(self._number, data))
        self._kept_bytes += len(data)
        while len(self._frames) > KEPT_FRAMES or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._frames.popleft().data)
        for page in self._pages:
            self.dropped += not page.offer(data)

    def _snapshot_now(self) -> bytes:
        """Everything, as of the latest frame."""
        if self._snapshot is None or self._snapshot.number != self._number:
            whole = {"at": round(self._wall(), 3), "process": self._own.process} | self._state
            whole |= {"requests": self._live, "changes": list(self._changes)}
            self._snapshot = EventFrame(self._number, self._encoded("snapshot", whole))
        return self._snapshot.data

    def _encoded(self, event: str, data: Mapping[str, Any]) -> bytes:
        head = f"id: {self._epoch}-{self._number}\nevent: {event}\ndata: ".encode()
        return head + orjson.dumps(data) + b"\n\n"

    def _events(self, told: Json) -> list[Json]:
        """What happened to requests since the frame before."""
        before = {(each["id"], each["at"]): each["state"] for each in self._live}
        found: list[Json] = [each | {"event": "ended"} for each in told["ended"]]
        for each in reversed(told["live"]):
            was = before.get((each["id"], each["at"]))
            if was is None:
                found.append(each | {"event": "begun"})
            elif was == "queued" and each["state"] == "running":
                found.append(each | {"event": "placed"})
        return found

    # --- All processes ---

    async def _read(self) -> tuple[Json, Json]:
        """The state of all processes, and what happened at them."""
        own = self._own
        state, happened = await own.read(), await own.happened(self._since.get(own.process))
        told, silent = {own.process: {"state": state, "happened": happened}}, {}
        if self._siblings is not None:
            asked = orjson.dumps(self._since).decode()
            answers = usable_answers(await self._siblings.ask_all("live", since=asked), _check)
            told |= answers.found
            silent = {name: answers.reasons.get(name, "it does not answer") for name in answers.missing}
            silent |= {name: why for name, why in self._siblings.gone().items() if name not in told}
        self._since = {name: int(each["happened"]["number"]) for name, each in told.items()}
        whole = (
            state
            if len(told) == 1 and not silent
            else merge_states([each["state"] for each in told.values()], silent)
        )
        return whole, merge_happenings(
            [each["happened"] for each in told.values()], MOST_REQUESTS, MOST_FLOWS
        )

    async def _answer(self, asked: Json) -> Json:
        """What a sibling asks; ``since`` has the numbers that it knows, by process."""
        since = orjson.loads(str(asked.get("since", "{}")))
        known = since.get(self._own.process) if isinstance(since, dict) else None
        number = known if isinstance(known, int) else None
        return {"state": await self._own.read(), "happened": await self._own.happened(number)}


def _finish(begun: "asyncio.Future[None]") -> None:
    if not begun.done():
        begun.set_result(None)


def _check(answer: Json) -> None:
    """Raises KeyError, TypeError, ValueError and AttributeError for what is none of these answers."""
    merge_states([answer["state"], answer["state"]], {})
    int(answer["happened"]["number"])
    merge_happenings([answer["happened"]], 1, 1)
