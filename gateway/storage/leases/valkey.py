"""Shared limits in Valkey or Redis: a script on the server's clock, and one connection to it.

Every limit is one hash: a field for each process that has a lease or used something lately, and a field ``=``
with what was spent of a budget. Every key expires, so that the server's memory is bounded by what was used
within a window. A limit's name is the key's hash tag, so a cluster keeps it in one slot.
"""

import hashlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gateway.storage.leases.rules import EngineAway, EngineForgot, EngineUnusable, LeaseGrant, LeaseStatement
from gateway.storage.leases.valkey_script import SCRIPT

if TYPE_CHECKING:
    from redis.asyncio import Redis

SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")

CONNECT_S = 1.0
"""For a connection, and for the answer to one command. A connection whose command took longer is closed, so
that its late answer is never taken for another's."""

_EPOCH = "epoch"
"""A key that whoever finds none sets to a value that never was. Another value than before means that the
server has forgotten everything since."""

KEY_MARGIN_S = 5.0
"""A key outlives what it has by so much."""

_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


class ValkeyLeaseEngine:
    """One connection, made when it is needed and again when it is lost. One caller at a time, which is never
    cancelled while it waits: the answer to what it sent might be taken for the next one's."""

    patience_s = 0.02

    def __init__(
        self, url: str, prefix: str = "trunkline:", clock: Callable[[], float] | None = None
    ) -> None:
        """``clock`` replaces the server's in tests. Raises EngineUnusable."""
        self.name = place_of(url)
        self._prefix = prefix
        self._clock = clock
        self._client = _client(url)
        self._epoch: bytes | None = None

    async def exchange(self, process: str, statements: list[LeaseStatement]) -> list[LeaseGrant]:
        """See :class:`gateway.storage.leases.rules.LeaseEngine`."""
        from redis.exceptions import NoScriptError, RedisError

        try:
            try:
                replies = await self._call("EVALSHA", _SHA, process, statements)
            except NoScriptError:  # the server is new, or was told to forget its scripts
                replies = await self._call("EVAL", SCRIPT, process, statements)
            self._look_at(replies[1])
            return [_grant(each) for each in replies[2:]]
        except (RedisError, OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
            # uvloop says RuntimeError of a connection that the server has closed
            await self._disconnect()
            raise EngineAway(f"{type(error).__name__}: {error}") from error

    async def _call(
        self, command: str, script: str, process: str, statements: list[LeaseStatement]
    ) -> list[Any]:
        now = "" if self._clock is None else repr(self._clock())
        pipeline = self._client.pipeline(transaction=False)
        pipeline.execute_command("SETNX", f"{self._prefix}{_EPOCH}", secrets.token_hex(8))
        pipeline.execute_command("GET", f"{self._prefix}{_EPOCH}")
        for each in statements:
            key = f"{self._prefix}{{{each.key}}}"
            pipeline.execute_command(command, script, 1, key, now, process, *_arguments(each))
        found: list[Any] = await pipeline.execute()
        return found

    def _look_at(self, epoch: object) -> None:
        """Raises EngineForgot if it is another one than before."""
        if not isinstance(epoch, bytes):
            raise TypeError(f"the epoch is {epoch!r}")
        before, self._epoch = self._epoch, epoch
        if before not in (None, epoch):
            raise EngineForgot("the server has lost what was stored there")

    async def _disconnect(self) -> None:
        """Whatever the connection may still receive is answered to nobody."""
        connection = self._client.connection
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._client.aclose()


def place_of(url: str) -> str:
    """``url`` as people may see it, whether it is one or not: without its user and password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def _client(url: str) -> "Redis":
    """Raises EngineUnusable."""
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise EngineUnusable(
            "limits in Valkey or Redis need the redis package: pip install 'trunkline[redis]'"
        ) from error
    scheme, _, rest = url.partition("://")
    try:
        return Redis.from_url(
            f"{scheme.replace('valkey', 'redis')}://{rest}",
            single_connection_client=True,
            socket_timeout=CONNECT_S,
            socket_connect_timeout=CONNECT_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
        )
    except (ValueError, TypeError) as error:
        raise EngineUnusable(f"{place_of(url)} is not a URL of Valkey or Redis ({error})") from error


def _arguments(statement: LeaseStatement) -> list[str]:
    """As the script reads them."""
    uses = ",".join(f"{age_s!r}:{amount!r}" for age_s, amount in statement.uses)
    lasts_s = statement.lasts_s or statement.window_s + statement.ttl_s + KEY_MARGIN_S
    numbers = (
        statement.limit,
        statement.window_s,
        statement.ttl_s,
        statement.sequence,
        statement.keep,
        statement.need,
        statement.least,
        statement.chunk,
        statement.debt,
        statement.spent,
        statement.acknowledged,
        1 if statement.lasts_s else 0,
        lasts_s,
    )
    seed = "" if statement.seed is None else repr(statement.seed)
    return [*map(repr, numbers), seed, uses]


def _grant(reply: object) -> LeaseGrant:
    """Raises ValueError and TypeError for what the script never says, and the error that it is."""
    if isinstance(reply, Exception):
        raise reply
    if not isinstance(reply, list) or len(reply) != 7:
        raise ValueError(f"the script gave {reply!r}")
    granted, paid, used, wait_s, reset_s, seeded, spent = reply
    wait = None if wait_s == b"" else float(wait_s)
    return LeaseGrant(
        float(granted), float(paid), float(used), wait, float(reset_s), seeded == b"1", float(spent)
    )
