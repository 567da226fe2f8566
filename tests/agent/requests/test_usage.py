"""Each kind of answer has its reader, and usage of a JSON answer is read."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from agent.requests.event_usage import EventUsage
from agent.requests.usage import JsonUsage, PassThrough, reader_for
from shared.protocol.messages import UsageMode
from tests.agent.requests.test_event_usage import USAGE, regroup, run


@given(st.integers(0, 300_000), st.booleans(), st.lists(st.integers(0, 400_000), max_size=20))
def test_usage_of_a_json_answer_is_read_from_either_end(size: int, first: bool, cuts: list[int]) -> None:
    usage = {"usage": {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}}
    rest = {"choices": [{"message": {"content": "x" * size}}], "model": "m"}
    body = orjson.dumps({**usage, **rest} if first else {**rest, **usage})
    reader = JsonUsage()
    assert run(reader, regroup(body, cuts)) == body
    assert reader.usage() == USAGE


def test_memory_for_a_json_answer_is_bounded() -> None:
    reader = JsonUsage()
    for _ in range(100):
        reader.feed(b"x" * 50_000)
    assert len(reader._tail) <= 2 * 64 * 1024 + 50_000


def test_the_reader_fits_the_content_type() -> None:
    assert isinstance(
        reader_for(UsageMode.STRIP, (("content-type", "text/event-stream; charset=utf-8"),)), EventUsage
    )
    assert isinstance(reader_for(UsageMode.NONE, (("content-type", "application/json"),)), JsonUsage)
    assert isinstance(reader_for(UsageMode.NONE, (("content-type", "audio/mpeg"),)), PassThrough)
    assert isinstance(reader_for(UsageMode.STRIP, ()), PassThrough)
    for coding, reader in (("gzip", PassThrough), ("GZIP", PassThrough), ("Identity", JsonUsage)):
        packed = (("content-type", "application/json"), ("content-encoding", coding))
        assert isinstance(reader_for(UsageMode.NONE, packed), reader)
