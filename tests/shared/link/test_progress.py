"""How often progress is said, and which (PROTOCOL §4.12)."""

from collections.abc import Callable
from typing import Any

from shared.link.progress import EVERY_S, ProgressReporter
from shared.protocol.errors import StreamHalfClosed
from shared.protocol.progress import Preview, Progress

PICTURE = Preview("image/png", b"picture")


class Timer:
    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, seconds: float, step: Callable[[], None]) -> Any:
        assert seconds == EVERY_S
        self.due.append(step)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def fire(self) -> None:
        self.due.pop()()


class Told:
    def __init__(self) -> None:
        self.said: list[Progress] = []
        self.takes = self.shows = True
        """There is room for words, and for previews."""
        self.timer = Timer()
        self.reporter = ProgressReporter(self.send, self.timer.call_later)

    def send(self, progress: Progress) -> bool:
        takes = self.takes and (self.shows or progress.preview is None)
        if takes:
            self.said.append(progress)
        return takes


def test_the_first_is_said_at_once_and_then_only_the_newest() -> None:
    told = Told()
    for step in range(10):
        told.reporter.report(Progress(step / 10))
    assert told.said == [Progress(0.0)]
    told.timer.fire()
    told.timer.fire()
    assert told.said == [Progress(0.0), Progress(0.9)]
    assert told.timer.due == []
    told.reporter.report(Progress(1.0))
    assert told.said[-1] == Progress(1.0)


def test_a_preview_that_was_not_said_stays_until_there_is_a_newer_one() -> None:
    told = Told()
    told.reporter.report(Progress(0.1))
    told.reporter.report(Progress(0.2, "", PICTURE))
    told.reporter.report(Progress(0.3, "step 3"))
    told.timer.fire()
    assert told.said[-1] == Progress(0.3, "step 3", PICTURE)


def test_what_the_session_has_no_room_for_is_said_later() -> None:
    told = Told()
    told.takes = False
    told.reporter.report(Progress(0.1))
    told.reporter.report(Progress(0.2))
    told.takes = True
    told.timer.fire()
    assert told.said == [Progress(0.2)]


def test_words_do_not_wait_for_room_for_their_preview() -> None:
    told = Told()
    told.shows = False
    told.reporter.report(Progress(0.1, "step 1", PICTURE))
    for _ in range(3):
        told.timer.fire()
    assert told.said == [Progress(0.1, "step 1")]
    told.reporter.report(Progress(0.2))
    told.timer.fire()
    told.shows = True
    told.timer.fire()
    assert told.said[1:] == [Progress(0.2), Progress(0.2, "", PICTURE)]
    told.timer.fire()
    assert told.timer.due == []


def test_nothing_is_said_of_a_request_that_is_over() -> None:
    told = Told()
    told.reporter.report(Progress(0.1))
    told.reporter.report(Progress(0.2))
    told.reporter.stop()
    assert (told.timer.due, told.said) == ([], [Progress(0.1)])

    def refuse(progress: Progress) -> bool:
        raise StreamHalfClosed("over")

    over = ProgressReporter(refuse, told.timer.call_later)
    over.report(Progress(0.5))
    assert told.timer.due == []
