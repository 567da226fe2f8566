"""Of what a model says of its progress, the newest is told, now and then, and nothing does harm."""

import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agent.serve import progress
from agent.serve.messages import ProgressReport
from agent.serve.progress import ProgressTeller, in_a_thread, media_type_of
from shared.protocol import limits
from tests.support.clock import ManualClock

PROGRESS_S, PREVIEW_S = 0.1, 0.25
JPEG = b"\xff\xd8\xff picture"


class Told:
    """A batch of the items 10 and 11."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent: list[ProgressReport] = []
        self.due: list[tuple[float, float, Callable[[], None]]] = []
        """In how many seconds, and when."""
        self.teller = ProgressTeller(self.sent.append, clock, self.later)
        self.teller.begin((10, 11))

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds >= 0
        self.due.append((seconds, self.clock() + seconds, call))

    def wait(self) -> None:
        """Until the next that waits is due."""
        self.due.sort(key=lambda each: each[1])
        _, at_s, call = self.due.pop(0)
        self.clock.advance(max(0.0, at_s - self.clock()))
        call()

    def wait_all(self) -> None:
        for _ in range(10):
            if self.due:
                self.wait()


@pytest.fixture
def told(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setattr(progress, "PROGRESS_S", PROGRESS_S)
    monkeypatch.setattr(progress, "PREVIEW_S", PREVIEW_S)
    return Told(clock)


def test_of_a_flood_the_first_and_then_the_newest_is_told(told: Told) -> None:
    for step in range(100_000):
        told.teller.report(step / 100_000, f"step {step}")
    assert told.sent == [ProgressReport((10, 11), 0.0, "step 0", None)]
    told.wait()
    assert told.sent[1:] == [ProgressReport((10, 11), 0.99999, "step 99999", None)]
    assert told.due == []
    told.clock.advance(PROGRESS_S)
    told.teller.report(1.0)
    assert told.sent[-1].fraction == 1.0


def test_items_are_told_of_by_themselves(told: Told) -> None:
    told.teller.report(0.0)
    told.teller.report(0.25, index=0)
    told.teller.report(0.5, index=-1)
    told.teller.report(0.75, index=1)
    told.wait()
    assert told.sent[1:] == [ProgressReport((10,), 0.25, "", None), ProgressReport((11,), 0.75, "", None)]


def test_a_preview_stays_the_newest_and_comes_less_often_than_words(told: Told) -> None:
    told.teller.report(0.1, "", JPEG)
    told.teller.report(0.2, "", JPEG + b"2")
    assert told.due[0][0] == pytest.approx(PROGRESS_S)
    told.wait()
    assert told.sent[1:] == [ProgressReport((10, 11), 0.2, "", None)]
    told.teller.report(0.3, "step 3", index=1)
    told.wait_all()
    assert told.sent[2:] == [
        ProgressReport((11,), 0.3, "step 3", None),
        ProgressReport((10,), 0.2, "", JPEG + b"2", "image/jpeg"),
        ProgressReport((11,), 0.3, "step 3", JPEG + b"2", "image/jpeg"),
    ]
    assert told.due == []


def test_words_that_come_while_a_preview_waits_do_not_wait_for_it(told: Told) -> None:
    told.teller.report(0.1, "", JPEG)
    told.clock.advance(PROGRESS_S)
    told.teller.report(0.2, "", JPEG + b"2")
    told.clock.advance(0.02)
    told.teller.report(0.3)
    assert told.due[-1][0] == pytest.approx(PROGRESS_S - 0.02)
    began_s = told.clock()
    told.wait_all()
    assert told.sent[1:] == [
        ProgressReport((10, 11), 0.2, "", None),
        ProgressReport((10, 11), 0.3, "", None),
        ProgressReport((10, 11), 0.3, "", JPEG + b"2", "image/jpeg"),
    ]
    assert told.clock() - began_s < PREVIEW_S


def test_at_the_end_the_newest_is_told_and_nothing_afterwards(told: Told) -> None:
    told.teller.report(0.5)
    told.teller.report(1.0, "all of it")
    told.teller.end()
    assert told.sent[-1] == ProgressReport((10, 11), 1.0, "all of it", None)
    told.teller.report(0.7)
    told.wait()
    assert len(told.sent) == 2


@pytest.mark.parametrize(
    ("given", "fraction"),
    [(math.nan, None), (math.inf, 1.0), (-math.inf, 0.0), (-1, 0.0), (7, 1.0), (True, 1.0)],
)
def test_a_fraction_is_brought_to_a_share(told: Told, given: float, fraction: float | None) -> None:
    told.teller.report(given)
    assert told.sent == [ProgressReport((10, 11), fraction, "", None)]


def test_words_are_cut_and_a_preview_that_is_too_large_is_left_out_and_logged_once(
    told: Told, log_records: list[logging.LogRecord]
) -> None:
    for size in range(3):
        told.clock.advance(1.0)
        told.teller.report(0.5, "w" * 1000, bytes(limits.PREVIEW_BYTES + 1 + size))
    assert {report.preview for report in told.sent} == {None}
    assert {len(report.words) for report in told.sent} == {limits.PROGRESS_TEXT_CHARS}
    (line,) = (each.getMessage() for each in log_records)
    assert "a preview of 16385 bytes, and 16384 are told at the most" in line


class Unsayable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "given",
    [
        {"fraction": "half"},
        {"fraction": [0.5]},
        {"fraction": 0.5, "preview": "text"},
        {"fraction": 0.5, "index": 2},
        {"fraction": 0.5, "index": -3},
        {"fraction": 0.5, "index": "first"},
        {"fraction": 0.5, "words": Unsayable()},
    ],
)
def test_what_cannot_be_told_is_left_out_and_logged_once(
    told: Told, given: dict[str, Any], log_records: list[logging.LogRecord]
) -> None:
    for _ in range(3):
        told.teller.report(**given)
    assert told.sent == []
    assert len(log_records) == 1
    told.teller.report(0.5)
    assert len(told.sent) == 1


def test_views_are_previews_and_a_type_may_be_given(told: Told) -> None:
    told.teller.report(None, "", memoryview(bytearray(b"x y")), media_type="text/plain")
    assert told.sent == [ProgressReport((10, 11), None, "", b"x y", "text/plain")]


def test_kinds_of_pictures_are_known_by_their_beginnings() -> None:
    kinds = {b"\x89PNG\r\n\x1a\nx": "image/png", b"GIF89a": "image/gif", b"RIFF1234WEBPVP8": "image/webp"}
    for data, kind in {JPEG: "image/jpeg", **kinds, b"?": "application/octet-stream"}.items():
        assert media_type_of(data) == kind


def test_what_waits_is_told_by_a_thread() -> None:
    called = threading.Event()
    in_a_thread(0.001, called.set)
    assert called.wait(30)
