"""What clients are told of progress, where in their answers, and what not."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from gateway.api.exchange import progress_writer
from gateway.api.exchange.progress_writer import ProgressForm, progress_form
from gateway.api.exchange.reply import Reply
from gateway.domain.errors import BadRequest, EngineError
from shared.protocol.progress import Preview, Progress
from shared.protocol.routes import Dialect
from tests.gateway.api.exchange.test_reply import Client

EVENT = b'data: {"n":1}\n\n'
PICTURE = Preview("image/png", b"picture")
BLINK_S = 0.001


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_writer, "EVERY_S", BLINK_S)
    monkeypatch.setattr(progress_writer, "RETRY_S", BLINK_S)


class Answer:
    """A reply whose client wants to be told, in an answer that may begin with that or not."""

    def __init__(self, form: ProgressForm = ProgressForm.COMMENT, *, may_begin: bool = True) -> None:
        self.client = Client()
        self.reply = Reply(self.client, "req_1", Dialect.OPENAI)
        self.delivered_s: list[float] = []
        self.writer = self.reply.tell_progress(
            form, may_begin=may_begin, on_delivered=self.delivered_s.append
        )

    async def begin(self, *, event_stream: bool = True) -> None:
        await self.reply.start(200, [(b"content-type", b"?")], event_stream=event_stream)

    async def ticks(self) -> None:
        """Time for whatever would be told to be told."""
        await asyncio.sleep(20 * BLINK_S)

    @property
    def told(self) -> list[dict[str, Any]]:
        lines = self.client.content.split(b"\n")
        return [orjson.loads(line[11:]) for line in lines if line.startswith(b": progress ")]


@pytest.fixture
async def answer() -> AsyncIterator[Answer]:
    answer = Answer()
    yield answer
    await answer.writer.close()


async def test_it_may_be_the_first_of_a_stream_and_comes_between_its_events(answer: Answer) -> None:
    answer.writer.tell(Progress(0.25, "step 1 of 4"))
    await answer.client.until(2)
    assert answer.client.head[0] == 200
    assert answer.client.head[1][b"content-type"].startswith(b"text/event-stream")
    await answer.reply.write(EVENT)
    answer.writer.tell(Progress(0.5, "", PICTURE))
    await answer.client.until(4)
    await answer.reply.end(EVENT)
    assert answer.client.content == (
        b': progress {"fraction":0.25,"text":"step 1 of 4"}\n\n'
        + EVENT
        + b': progress {"fraction":0.5,"preview":{"type":"image/png","data":"cGljdHVyZQ=="}}\n\n'
        + EVENT
    )
    assert len(answer.delivered_s) == 2
    assert all(0 <= each < 5 for each in answer.delivered_s)


async def test_events_have_a_name_for_those_who_want_them() -> None:
    answer = Answer(ProgressForm.EVENT)
    answer.writer.tell(Progress(0.25, "two\nlines"))
    await answer.client.until(2)
    assert answer.client.content == b'event: progress\ndata: {"fraction":0.25,"text":"two\\nlines"}\n\n'
    await answer.writer.close()


async def test_of_a_flood_only_the_newest_is_told_and_a_preview_is_kept_for_it(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_writer, "EVERY_S", 0.05)
    answer.writer.tell(Progress(0.0))
    await answer.client.until(2)
    answer.writer.tell(Progress(0.1, "", PICTURE))
    for step in range(100_000):
        answer.writer.tell(Progress(step / 100_000))
    await answer.client.until(3)
    assert answer.told == [{"fraction": 0.0}, {"fraction": 0.99999, "preview": PICTURE.to_dict()}]


async def test_nothing_is_told_in_the_middle_of_an_event(answer: Answer) -> None:
    await answer.begin()
    await answer.reply.write(EVENT[:5])
    answer.writer.tell(Progress(0.5))
    await answer.ticks()
    assert answer.client.content == EVENT[:5]
    await answer.reply.write(EVENT[5:])
    await answer.client.until(4)
    assert answer.client.content == EVENT + b': progress {"fraction":0.5}\n\n'


async def test_nothing_is_told_ahead_of_what_waits_for_the_client_to_read(answer: Answer) -> None:
    await answer.begin()
    await answer.reply.write(EVENT)
    answer.client.open.clear()
    writing = asyncio.ensure_future(answer.reply.write(EVENT[:5]))
    await asyncio.sleep(0)
    answer.writer.tell(Progress(0.5))
    await answer.ticks()
    answer.client.open.set()
    await writing
    await answer.ticks()
    assert answer.client.content == EVENT + EVENT[:5]
    await answer.reply.write(EVENT[5:])
    await answer.client.until(5)
    assert answer.client.content.endswith(EVENT + b': progress {"fraction":0.5}\n\n')


async def test_what_is_written_while_progress_is_on_its_way_comes_behind_it(answer: Answer) -> None:
    await answer.begin()
    await answer.reply.write(EVENT)
    answer.client.open.clear()
    answer.writer.tell(Progress(0.5))
    await answer.ticks()
    writing = asyncio.ensure_future(answer.reply.write(EVENT[:5]))
    await answer.ticks()
    answer.client.open.set()
    await writing
    assert answer.client.content == EVENT + b': progress {"fraction":0.5}\n\n' + EVENT[:5]


async def test_an_answer_in_one_piece_is_left_alone() -> None:
    answer = Answer(may_begin=False)
    answer.writer.tell(Progress(0.5))
    await answer.ticks()
    assert answer.client.sent == []
    await answer.begin(event_stream=False)
    answer.writer.tell(Progress(0.75))
    await answer.ticks()
    await answer.reply.end(b'{"ok":true}')
    assert answer.client.content == b'{"ok":true}'
    assert answer.delivered_s == []


async def test_an_answer_that_turns_out_to_be_events_is_told_of_from_its_beginning() -> None:
    answer = Answer(may_begin=False)
    answer.writer.tell(Progress(0.5))
    await answer.begin()
    await answer.client.until(2)
    assert answer.told == [{"fraction": 0.5}]
    await answer.writer.close()


async def test_an_error_is_a_status_until_something_was_told_and_then_the_last_event(
    answer: Answer,
) -> None:
    other = Answer()
    await other.reply.fail(EngineError("no"))
    assert other.client.head[0] == 502
    answer.writer.tell(Progress(0.5))
    await answer.client.until(2)
    await answer.reply.fail(EngineError("no"))
    assert answer.client.content.startswith(b': progress {"fraction":0.5}\n\ndata: {"error":')


async def test_after_the_end_nothing_is_told(answer: Answer) -> None:
    await answer.begin()
    answer.writer.tell(Progress(0.5))
    await answer.reply.end(EVENT)
    answer.writer.tell(Progress(1.0))
    await answer.ticks()
    assert answer.client.content == EVENT
    assert answer.client.sent[-1]["more_body"] is False


def test_what_the_header_asks_for() -> None:
    asked = {
        raw: progress_form({progress_writer.PROGRESS: raw})
        for raw in (b"1", b" TRUE ", b"comments", b"events", b"0", b"false")
    }
    assert list(asked.values()) == [*3 * [ProgressForm.COMMENT], ProgressForm.EVENT, None, None]
    assert progress_form({}) is None
    for raw in (b"", b"2", b"yes"):
        with pytest.raises(BadRequest, match="x-trunkline-progress"):
            progress_form({progress_writer.PROGRESS: raw})
