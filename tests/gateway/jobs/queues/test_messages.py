"""A message says all that a job needs, or why none can be made of it."""

import json
from typing import Any

import orjson
import pytest

from gateway.domain.queues import QueueOrigin
from gateway.domain.request import Tier
from gateway.jobs.queues.messages import JobMessage, PoisonMessage, read_message
from gateway.jobs.queues.source import TakenMessage
from tests.gateway.jobs.queues.fakes import NOW_S, PATH, RULES


def read(content: object, **given: Any) -> JobMessage:
    body = content if isinstance(content, bytes) else orjson.dumps(content)
    return read_message(TakenMessage(body, 0, **given), RULES, NOW_S)


def test_little_must_be_said() -> None:
    asked = read({"id": "1", "body": {"messages": []}})
    assert json.loads(asked.body) == {"messages": [], "model": "m"}
    assert (asked.draft.path, asked.draft.terms.deadline_s) == (PATH, None)
    assert asked.origin == QueueOrigin("orders", "1")


def test_all_can_be_said() -> None:
    asked = read(
        {
            "id": 7,
            "route": "embeddings",
            "body": {"model": "e", "input": "x"},
            "deadline": NOW_S + 60,
            "reply_to": "answers",
            "headers": {"x-model": "e"},
            "tier": "standard",
            "metadata": {"a": "b"},
        }
    )
    assert json.loads(asked.body)["model"] == "e"
    assert (asked.draft.path, asked.draft.headers) == ("/v1/embeddings", (("x-model", "e"),))
    terms = asked.draft.terms
    assert (terms.tier, terms.deadline_s, terms.metadata) == (Tier.STANDARD, NOW_S + 60, {"a": "b"})
    assert asked.origin == QueueOrigin("orders", "7", "answers")


def test_the_broker_s_own_id_and_place_of_replies_count_where_the_message_says_none() -> None:
    asked = read({"body": {}}, id="1-0", reply_to="there")
    assert asked.origin == QueueOrigin("orders", "1-0", "there")
    asked = read({"id": "a", "reply_to": "here", "body": {}}, id="1-0", reply_to="there")
    assert asked.origin == QueueOrigin("orders", "a", "here")


@pytest.mark.parametrize(
    ("said", "body", "streams"),
    [({}, {}, False), ({"stream": True}, {}, True), ({}, {"stream": True}, True)],
)
def test_answers_are_sent_while_they_are_written_if_asked_for(
    said: dict[str, Any], body: dict[str, Any], streams: bool
) -> None:
    asked = read({"id": "1", "reply_to": "r", "body": body, **said})
    assert asked.origin.stream is streams
    assert json.loads(asked.body).get("stream", False) is streams


def test_an_answer_that_an_engine_streams_can_be_sent_whole() -> None:
    assert not read({"id": "1", "reply_to": "r", "stream": False, "body": {"stream": True}}).origin.stream


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[1]", "no JSON object"),
        (b"x" * 10_001, "10001 bytes, and may have 10000"),
        ({"id": "1"}, "'body' must be"),
        ({"id": "1", "body": "x"}, "'body' must be"),
        ({"body": {}}, "no 'id'"),
        ({"id": "", "body": {}}, "'id' must be"),
        ({"id": [], "body": {}}, "'id' must be"),
        ({"id": "a\0", "body": {}}, "'id' must be"),
        ({"id": "1", "body": {}, "bodyy": 1, "x": 1}, "unknown members: bodyy, x"),
        ({"id": "1", "body": {}, "route": "nowhere"}, "no route 'nowhere'"),
        ({"id": "1", "body": {}, "route": "chat", "path": "/x"}, "both"),
        ({"id": "1", "body": {}, "deadline": NOW_S}, "is over"),
        ({"id": "1", "body": {}, "deadline": "x"}, "must be a number"),
        ({"id": "1", "body": {}, "deadline": NOW_S + 10**9}, "30 days"),
        ({"id": "1", "body": {}, "stream": 1}, "true or false"),
        ({"id": "1", "body": {}, "stream": True}, "needs 'reply_to'"),
        ({"id": "1", "body": {}, "tier": "soon"}, "'tier' must be"),
        ({"id": "1", "body": {}, "tier": ["batch"]}, "'tier' must be"),
        (b'{"id": "1", "body": {"x": ' + b"[" * 500 + b"]" * 500 + b"}}", "'body' cannot be written"),
        ({"id": "1", "body": {}, "metadata": {"a": 1}}, "'metadata' must be"),
        ({"id": "1", "body": {}, "metadata": {"a": "b" * 1000}}, "'metadata' has"),
        ({"id": "1", "body": {}, "headers": {"x": "a\nb"}}, "printable ASCII"),
        ({"id": "1", "body": {}, "headers": ["x"]}, "'headers' must be"),
    ],
)
def test_what_is_no_request_for_a_job_says_why(content: object, reason: str) -> None:
    with pytest.raises(PoisonMessage, match=reason):
        read(content)
