"""Redis or Valkey as a broker of messages: one client, and what its failures mean."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gateway.jobs.queues.source import BrokerAway, ReplyRefused

if TYPE_CHECKING:
    from redis.asyncio import Redis

COMMAND_S = 5.0
"""For the answer to a command, beside what it waits by itself."""

_STANDARD = {"valkey": "redis", "valkeys": "rediss"}


def redis_client(url: str, wait_s: float) -> "Redis":
    """A client whose commands may block for ``wait_s``. Raises ValueError for a URL that is none or has
    options that cannot be used, and ImportError where the package is missing."""
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    scheme, colon, rest = url.partition("://")
    client = Redis.from_url(
        f"{_STANDARD.get(scheme, scheme)}{colon}{rest}",
        socket_connect_timeout=COMMAND_S,
        socket_timeout=COMMAND_S + wait_s,
    )
    pool: Any = client.connection_pool
    if pool.connection_kwargs.get("decode_responses"):
        raise ValueError("messages are bytes, so it cannot have the option decode_responses")
    try:
        pool.make_connection()  # one that connects to nothing: it tells which options there are
    except (TypeError, RedisError) as error:
        raise ValueError(f"an option of it cannot be used ({error})") from error
    return client


@contextlib.contextmanager
def redis_failures() -> Iterator[None]:
    """Whatever goes wrong inside is BrokerAway."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError, TimeoutError, RuntimeError) as error:
        # uvloop says RuntimeError of a connection that the server has closed
        raise BrokerAway(str(error) or type(error).__name__) from error


@contextlib.contextmanager
def reply_failures(to: str) -> Iterator[None]:
    """As :func:`redis_failures`, but what the server itself refuses is ReplyRefused."""
    from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError, ResponseError

    with redis_failures():
        try:
            yield
        except (BusyLoadingError, OutOfMemoryError, ReadOnlyError):
            raise
        except ResponseError as error:
            raise ReplyRefused(f"{to}: {error}") from error


async def close_client(client: "Redis") -> None:
    with contextlib.suppress(Exception):
        await client.aclose()


def text_of(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
