"""Frames: made once for all, dropped for who does not read, caught up with by who comes back."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.api.admin.live import feed as module
from gateway.api.admin.live.feed import EventFeed
from gateway.api.admin.live.patch import apply_patch
from gateway.domain.errors import Overloaded
from gateway.observability.gauges import Family
from gateway.runtime.workers.siblings import SiblingAnswers
from tests.gateway.api.admin.live.test_state import process
from tests.gateway.dispatch.decisions.kept import facts
from tests.gateway.fleet.fleet import Fleet, deployment

TICK_S = 0.01


class Page:
    """Follows a feed, and keeps the state that its events make."""

    def __init__(self, feed: EventFeed, last_id: str = "") -> None:
        self.pieces: AsyncGenerator[bytes] = feed.follow(last_id)
        self.state: dict[str, Any] = {}
        self.last_id = last_id
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def take(self) -> tuple[str, dict[str, Any]]:
        piece = await asyncio.wait_for(anext(self.pieces), 60)
        for text in piece.decode().strip().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in text.split("\n"))
            data = json.loads(fields["data"])
            if fields["event"] == "snapshot":
                self.state = data
            elif fields["event"] == "delta":
                happened = {"requests", "requests_left_out", "flow", "tokens", "changes"}
                self.state = apply_patch(self.state, {n: v for n, v in data.items() if n not in happened})
            self.last_id = fields.get("id", self.last_id)
            self.events.append((fields["event"], data))
        return self.events[-1]

    async def until(self, event: str) -> dict[str, Any]:
        while (taken := await self.take())[0] != event:
            pass
        return taken[1]


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet()
    made.connect("a", deployment("m", 4))
    return made


def feed_of(fleet: Fleet, **more: Any) -> EventFeed:
    return EventFeed(process(fleet), tick_s=TICK_S, **more)


async def test_a_page_has_a_snapshot_and_then_what_changes(fleet: Fleet) -> None:
    feed = feed_of(fleet)
    page = Page(feed)
    event, first = await page.take()
    assert (event, first["process"], first["totals"]["running"]) == ("snapshot", "p", 0)
    client = fleet.submit()
    while not page.state["totals"]["running"]:
        await page.until("delta")
    assert page.state["deployments"]["a/d-m"]["in_flight"] == 1
    told = [each for _, data in page.events for each in data.get("requests", ())]
    assert [(each["id"], each["event"]) for each in told] == [(client.request.id, "begun")]
    fleet.connect("b", deployment("n", 1))
    changes: list[dict[str, Any]] = []
    while len(changes) < 2:
        changes += (await page.until("delta")).get("changes", [])
    assert {(each["of"], each["name"], each["to"]) for each in changes} == {
        ("agent", "b", "ready"),
        ("deployment", "b/d-n", "loaded"),
    }
    await page.pieces.aclose()


async def test_a_page_that_comes_while_the_state_cannot_be_read_has_all_of_it_first(fleet: Fleet) -> None:
    failing = [True] * 5

    def troubles() -> dict[str, bool]:
        if failing and failing.pop():
            raise OSError
        return {}

    state = process(fleet)
    state.troubles = troubles
    page = Page(EventFeed(state, tick_s=TICK_S))
    event, first = await page.take()
    assert (event, set(first["agents"]), first["totals"]["running"]) == ("snapshot", {"a"}, 0)
    await page.pieces.aclose()


async def test_a_page_that_waits_for_the_state_ends_with_the_process(fleet: Fleet) -> None:
    ending: list[bool] = []

    def troubles() -> dict[str, bool]:
        ending.append(True)
        raise OSError

    state = process(fleet)
    state.troubles = troubles
    feed = EventFeed(state, tick_s=TICK_S, ends=lambda: bool(ending))
    async with asyncio.timeout(60):
        assert [piece async for piece in feed.follow()] == []


async def test_frames_are_made_only_while_somebody_follows_and_once_for_all(fleet: Fleet) -> None:
    feed = feed_of(fleet)
    await asyncio.sleep(5 * TICK_S)
    assert feed.made == 0
    pages = [Page(feed) for _ in range(5)]
    for page in pages:
        await page.take()
    pieces = [await page.pieces.__anext__() for page in pages]
    assert len({id(piece) for piece in pieces}) == len(set(pieces)), "equal ones are the very same bytes"
    assert len(set(pieces)) < len(pieces)
    for page in pages:
        await page.pieces.aclose()
    made = feed.made
    await asyncio.sleep(5 * TICK_S)
    assert feed.made == made


async def test_who_does_not_read_misses_frames_and_no_state(fleet: Fleet) -> None:
    feed = feed_of(fleet)
    reading, slow = Page(feed), Page(feed)
    await reading.take()
    await slow.take()
    fleet.submit()
    for _ in range(8):
        await reading.until("delta")
    while slow.events[-1][0] != "snapshot" or len(slow.events) < 2:
        await slow.take()
    events = [event for event, _ in slow.events]
    assert events[0] == "snapshot"
    assert events[-2:] == ["dropped", "snapshot"]
    frames = slow.events[-2][1]["frames"]
    assert frames >= 5
    assert feed.dropped >= frames
    figures = {each.name: each for each in feed.figures()}
    assert isinstance(figures["event_frames_dropped"], Family)
    assert slow.state["totals"] == reading.state["totals"]
    assert slow.state["deployments"] == reading.state["deployments"]
    for page in (reading, slow):
        await page.pieces.aclose()


async def test_who_comes_back_has_what_it_missed_or_a_snapshot(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = feed_of(fleet)
    staying, page = Page(feed), Page(feed)
    await staying.take()
    await page.take()
    await page.until("delta")
    await page.pieces.aclose()
    fleet.submit()
    for _ in range(3):
        await staying.until("delta")
    back = Page(feed, page.last_id)
    back.state = page.state
    event, _ = await back.take()
    assert event == "delta"
    while back.state["totals"] != staying.state["totals"]:
        await back.take()
    assert {event for event, _ in back.events} == {"delta"}
    monkeypatch.setattr(module, "KEPT_FRAMES", 1)
    for _ in range(3):
        await staying.until("delta")
    for last_id in (page.last_id, "other-1", f"{page.last_id}999", "x", "-", page.last_id.partition("-")[0]):
        late = Page(feed, last_id)
        assert (await late.take())[0] == "snapshot"
        await late.pieces.aclose()
    for each in (staying, back):
        await each.pieces.aclose()


async def test_there_are_so_many_pages_and_no_more(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PAGES", 1)
    feed = feed_of(fleet)
    page = Page(feed)
    await page.take()
    with pytest.raises(Overloaded):
        await Page(feed).take()
    await page.pieces.aclose()
    other = Page(feed)
    assert (await other.take())[0] == "snapshot"
    await other.pieces.aclose()


async def test_the_stream_ends_with_the_process(fleet: Fleet) -> None:
    ending: list[bool] = []
    feed = feed_of(fleet, ends=lambda: bool(ending))
    page = Page(feed)
    await page.take()
    ending.append(True)
    async with asyncio.timeout(60):
        rest = [piece async for piece in page.pieces]
    assert len(rest) <= 2


class Other:
    """Another process, asked in place."""

    def __init__(self, fleet: Fleet) -> None:
        self.answers: dict[str, Any] = {}
        self.says: dict[str, Any] | None = None
        reader = process(fleet)
        reader.process = "q"
        EventFeed(reader, self)
        self.theirs, self.records = self.answers["live"], reader.records

    def answer(self, question: str, answerer: Any) -> None:
        self.answers[question] = answerer

    async def ask_all(self, question: str, **asked: Any) -> SiblingAnswers:
        said = await self.theirs(asked)
        return SiblingAnswers({"q": said if self.says is None else self.says}, [])

    def gone(self) -> dict[str, str]:
        return {"r": "it has not been heard of"}


async def test_several_processes_are_one_and_who_does_not_answer_is_named(fleet: Fleet) -> None:
    elsewhere = Fleet()
    elsewhere.connect("a", deployment("m", 2))
    other = Other(elsewhere)
    feed = EventFeed(process(fleet), other, tick_s=TICK_S)
    page = Page(feed)
    _, first = await page.take()
    assert first["deployments"]["a/d-m"]["slots"] == 6
    assert first["processes"]["r"] == {"up": False, "why": "it has not been heard of"}
    other.records.add(facts(7), "key", 1, 2, None)
    found: list[dict[str, Any]] = []
    while not found:
        found = (await page.until("delta")).get("requests", [])
    assert [(each["id"], each["process"], each["event"]) for each in found] == [("r7", "q", "ended")]
    other.says = {"state": {}}
    while page.state["processes"]["q"]["up"]:
        await page.until("delta")
    assert page.state["deployments"]["a/d-m"]["slots"] == 4
    await page.pieces.aclose()
