"""Failures of Redis are the broker's or the reply's."""

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from gateway.jobs.queues.redis_client import redis_client, redis_failures, reply_failures
from gateway.jobs.queues.redis_stream import RedisStreamSource
from gateway.jobs.queues.source import BrokerAway, ReplyRefused
from shared.process.ports import free_port


@pytest.mark.parametrize("error", [ResponseError("x"), OSError("x"), TimeoutError(), RuntimeError("x")])
def test_what_goes_wrong_is_that_the_broker_is_away(error: Exception) -> None:
    with pytest.raises(BrokerAway), redis_failures():
        raise error


def test_what_the_server_refuses_of_a_reply_is_said_so() -> None:
    with pytest.raises(ReplyRefused, match="answers: WRONGTYPE"), reply_failures("answers"):
        raise ResponseError("WRONGTYPE")
    with pytest.raises(BrokerAway), reply_failures("answers"):
        raise OutOfMemoryError("no room just now")


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ValueError, match="URL"):
        redis_client("nonsense", 1.0)


async def test_a_server_that_is_not_there_is_away() -> None:
    source = RedisStreamSource(f"valkey://127.0.0.1:{free_port()}", "s", "g", "d")
    with pytest.raises(BrokerAway):
        await source.take(1, 0.1)
    await source.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [("timeout=2", "timeout"), ("protocol=7", "protocol"), ("decode_responses=True", "messages are bytes")],
)
def test_options_that_cannot_be_used_are_refused(options: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        redis_client(f"redis://127.0.0.1:6379/0?{options}", 1.0)


def test_options_that_there_are_can_be_given() -> None:
    redis_client("valkeys://127.0.0.1:6379/0?ssl_cert_reqs=none&protocol=3&client_name=a", 1.0)
