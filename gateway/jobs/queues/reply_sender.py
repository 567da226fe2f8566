"""Puts one reply after the other to the brokers of one process, and counts them."""

import asyncio
from collections.abc import Mapping

from gateway.domain.queues import PendingReply
from gateway.jobs.queues.metrics import QueueMetrics
from gateway.jobs.queues.reply_bodies import output_body, restart_body
from gateway.jobs.queues.source import BrokerAway, Source


class LeaseLost(Exception):
    """Another process goes on with the replies of this job."""


class ReplySender:
    """Every method returns once the broker has the reply. Raises BrokerAway, ReplyRefused."""

    def __init__(self, sources: Mapping[str, Source], metrics: QueueMetrics, within_s: float) -> None:
        """``within_s``: a broker that has not taken a reply by then is away."""
        self._sources = sources
        self._metrics = metrics
        self._within_s = within_s

    async def output(self, reply: PendingReply, sequence: int, offset: int, data: bytes) -> None:
        """Bytes of the answer."""
        await self.send(reply, sequence, output_body(reply, sequence, offset, data))

    async def restart(self, reply: PendingReply, sequence: int) -> None:
        """The answer begins anew."""
        await self.send(reply, sequence, restart_body(reply, sequence))

    async def send(self, reply: PendingReply, sequence: int, body: bytes) -> None:
        origin = reply.origin
        assert origin.reply_to is not None
        try:
            async with asyncio.timeout(self._within_s):
                await self._sources[origin.source].reply(origin.reply_to, origin.message_id, sequence, body)
        except TimeoutError:
            raise BrokerAway("it did not take a reply in time") from None
        self._metrics.replies(origin.source, "sent")
