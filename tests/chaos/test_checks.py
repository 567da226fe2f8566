"""The checker sees what is wrong with an answer: a check that cannot fail would be none."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.chaos.answers import read_stream, read_whole
from tests.chaos.asks import PATHS, Ask, Special
from tests.chaos.checks import Failure, Finding, Verdict, judge
from tests.support.scripted_engine.answers import UNARY
from tests.support.scripted_engine.planned import plan
from tests.support.scripted_engine.script import Script
from tests.support.scripted_engine.streams import STREAMED

ASK = Ask(1, "alpha", "chat", "what is it", 6, True, True, 10.0, usage=True)


def _events(ask: Ask) -> list[bytes]:
    """What the engine writes for it, event by event."""
    body = ask.body()
    script = Script.from_json(body["script"], Script())
    streamed = STREAMED[ask.route](body, plan(ask.route, body, script), script, lambda prefix: f"{prefix}-1")
    opening = streamed.opening()
    chunks = [streamed.chunk(index, 0.0) for index in range(streamed.count)]
    data = b"".join([opening, *chunks, streamed.closing()])
    return [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]


def _judge(ask: Ask, events: list[bytes]) -> Finding:
    return judge(ask, read_stream(ask.route, b"".join(events)), None)


def _saying(events: list[bytes], text: bytes) -> int:
    return next(place for place, event in enumerate(events) if text in event)


@pytest.mark.parametrize("route", PATHS)
@pytest.mark.parametrize("stopped", [True, False])
def test_what_the_engine_says_is_right_streamed_and_whole(route: str, stopped: bool) -> None:
    ask = replace(ASK, route=route, stopped=stopped)
    assert _judge(ask, _events(ask)) == Finding(Verdict.RIGHT)
    whole = replace(ask, stream=False)
    body = whole.body()
    planned = plan(route, body, Script.from_json(body["script"], Script()))
    answer: dict[str, Any] = UNARY[route](body, planned, lambda prefix: prefix)
    assert judge(whole, read_whole(route, orjson.dumps(answer)), None) == Finding(Verdict.RIGHT)


@pytest.mark.parametrize("special", list(Special))
def test_what_cannot_be_continued_is_right_when_it_is_whole(special: Special) -> None:
    ask = replace(ASK, special=special, usage=special is Special.NONE)
    assert _judge(ask, _events(ask)) == Finding(Verdict.RIGHT)


@pytest.mark.parametrize("route", ["chat", "completions", "messages"])
def test_a_token_left_out_is_lost_one_said_twice_is_doubled_another_is_wrong(route: str) -> None:
    ask = replace(ASK, route=route)
    events = _events(ask)
    third = _saying(events, b"2:")
    assert _judge(ask, events[:third] + events[third + 1 :]).verdict is Verdict.LOST
    assert _judge(ask, [*events[:third], events[third], *events[third:]]).verdict is Verdict.DOUBLED
    other = events[third].replace(b"2:", b"9:")
    assert _judge(ask, [*events[:third], other, *events[third + 1 :]]).verdict is Verdict.WRONG


@pytest.mark.parametrize("route", PATHS)
@pytest.mark.parametrize("kept", [0, 1, 5, -1])
def test_a_stream_cut_short_without_an_error_has_no_end_wherever_it_was_cut(route: str, kept: int) -> None:
    ask = replace(ASK, route=route)
    assert _judge(ask, _events(ask)[:kept]).verdict is Verdict.UNENDED


@pytest.mark.parametrize("route", PATHS)
def test_an_answer_that_ends_well_but_short_has_lost_tokens(route: str) -> None:
    ask = replace(ASK, route=route, tokens=6)
    assert _judge(ask, _events(replace(ask, tokens=4))).verdict is Verdict.LOST


def test_two_ids_in_one_stream_are_seen() -> None:
    events = _events(ASK)
    third = _saying(events, b"2:")
    swapped = [event.replace(b"chatcmpl-1", b"chatcmpl-2") for event in events[third:]]
    assert _judge(ASK, events[:third] + swapped).verdict is Verdict.IDS


def test_usage_that_does_not_add_up_or_is_missing_is_seen() -> None:
    events = _events(ASK)
    place = _saying(events, b'"completion_tokens":6')
    other = events[place].replace(b'"completion_tokens":6', b'"completion_tokens":5')
    assert _judge(ASK, [*events[:place], other, *events[place + 1 :]]).verdict is Verdict.USAGE
    assert _judge(ASK, events[:place] + events[place + 1 :]).verdict is Verdict.USAGE


def test_a_second_start_a_skipped_number_and_a_wrong_finish_are_seen() -> None:
    events = _events(ASK)
    assert _judge(ASK, [events[0], *events]).verdict is Verdict.SHAPE
    assert _judge(replace(ASK, stopped=False), events).verdict is Verdict.SHAPE
    responses = replace(ASK, route="responses")
    numbered = _events(responses)
    assert _judge(responses, numbered[:1] + numbered[2:]).verdict is Verdict.SHAPE


def test_an_error_after_a_correct_beginning_is_an_error_and_after_a_wrong_one_wrong() -> None:
    events = _events(ASK)
    failure = Failure("frame", "engine_failed")
    begun = read_stream("chat", b"".join(events[:4]))
    assert judge(ASK, begun, failure).verdict is Verdict.ERROR
    wrong = read_stream("chat", b"".join([*events[:2], events[3]]))
    assert judge(ASK, wrong, failure).verdict is Verdict.LOST


def test_a_client_that_left_judges_only_what_it_had() -> None:
    events = _events(ASK)
    assert judge(ASK, read_stream("chat", b"".join(events[:4])), None, left=True).verdict is Verdict.LEFT
    doubled = read_stream("chat", b"".join([*events[:3], events[2]]))
    assert judge(ASK, doubled, None, left=True).verdict is Verdict.DOUBLED
