"""A queue on a real server feeds jobs: messages are taken by credit, come again, are rejected, and
replied to."""

import asyncio
import json

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from gateway.jobs.queues.rabbitmq import REASON, RabbitSource
from gateway.jobs.queues.source import BrokerAway, ReplyRefused
from shared.process.ports import free_port
from tests.gateway.jobs.queues.rabbit_queues import LIMIT_S, URL, rabbit_queues


async def put(channel: AbstractChannel, queue: str, *bodies: bytes, **given: str) -> None:
    for body in bodies:
        await channel.default_exchange.publish(aio_pika.Message(body, **given), queue)  # type: ignore[arg-type]


async def get(channel: AbstractChannel, queue: str) -> AbstractIncomingMessage:
    """The next message, which must be there."""
    found = await (await channel.get_queue(queue)).get(no_ack=True)
    assert found is not None
    return found


async def test_messages_are_taken_settled_and_come_again() -> None:
    async with rabbit_queues("in") as (channel, names):
        one, two = (RabbitSource(URL, names["in"], names["dead"]) for _ in range(2))
        await put(channel, names["in"], b"0", b"1", message_id="7", reply_to="answers")
        found = [*await one.take(2, LIMIT_S)]
        assert 1 <= len(found) <= 2, "no more than there is room for"
        while len(found) < 2:
            found += await one.take(2 - len(found), LIMIT_S)
        assert [(each.body, each.id, each.reply_to) for each in found] == [
            (b"0", "7", "answers"),
            (b"1", "7", "answers"),
        ]
        await put(channel, names["in"], b"2")
        (third,) = await two.take(2, LIMIT_S)
        assert third.body == b"2", "the other one wants no more"
        await one.acknowledge(found[0])
        await two.acknowledge(third)
        await one.close()
        (again,) = await two.take(2, LIMIT_S)
        assert again.body == b"1", "its taker is gone"
        with pytest.raises(BrokerAway):
            await one.acknowledge(found[1])
        await two.reject(again, "it is poison")
        letter = await get(channel, names["dead"])
        assert (letter.body, letter.headers[REASON], letter.message_id) == (b"1", "it is poison", "7")
        assert await two.take(1, 0.01) == []
        await two.close()


async def test_replies_are_confirmed_or_refused() -> None:
    async with rabbit_queues("in", "out") as (channel, names):
        source = RabbitSource(URL, names["in"], names["dead"])
        await source.reply(names["out"], "7", 1, b'{"a": 1}')
        reply = await get(channel, names["out"])
        assert (reply.correlation_id, reply.message_id, json.loads(reply.body)) == ("7", "7.1", {"a": 1})
        assert reply.delivery_mode is aio_pika.DeliveryMode.PERSISTENT
        with pytest.raises(ReplyRefused, match="nowhere"):
            await source.reply(f"{names['out']}-nowhere", "7", 2, b"{}")
        await source.reply(names["out"], "7", 2, b"{}")
        await source.close()


async def test_names_and_ids_that_are_too_long_for_the_broker_are_refused_or_told_otherwise() -> None:
    async with rabbit_queues("in", "out") as (channel, names):
        source = RabbitSource(URL, names["in"], names["dead"])
        with pytest.raises(ReplyRefused, match="255 bytes"):
            await source.reply("a" * 300, "7", 1, b"{}")
        for sequence in (1, 2):
            await source.reply(names["out"], "ä" * 200, sequence, b"{}")
        first, second = [await get(channel, names["out"]) for _ in range(2)]
        assert first.correlation_id == second.correlation_id
        assert first.message_id != second.message_id
        await source.close()


async def test_a_queue_that_is_missing_is_waited_for() -> None:
    async with rabbit_queues() as (channel, names):
        missing = f"{names['dead']}-in"
        source = RabbitSource(URL, missing, names["dead"])
        with pytest.raises(BrokerAway, match="NOT_FOUND"):
            await source.take(1, 0.01)
        await channel.declare_queue(missing, auto_delete=True, durable=True)
        await put(channel, missing, b"x")
        (found,) = await source.take(1, LIMIT_S)
        assert found.body == b"x"
        await source.acknowledge(found)
        await source.close()
        await channel.queue_delete(missing)


async def test_a_server_that_is_not_there_is_away() -> None:
    source = RabbitSource(f"amqp://guest:guest@127.0.0.1:{free_port()}/", "q", "d")
    with pytest.raises(BrokerAway):
        await source.take(1, 0.01)
    await source.close()


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ValueError, match="port"):
        RabbitSource("amqp://h:port/", "q", "d")


async def test_a_connection_that_is_given_up_is_that_the_broker_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever waits for it gets CancelledError from aiormq, and is not cancelled."""
    source = RabbitSource(URL, "in", "dead")

    async def give_up() -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(source, "_open_queue", give_up)
    for asking in (source.take(1, 0.01), source.reply("out", "7", 1, b"{}")):
        with pytest.raises(BrokerAway, match="stuck"):
            await asking


async def test_who_is_cancelled_stays_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    source, asked = RabbitSource(URL, "in", "dead"), asyncio.Event()

    async def wait() -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(source, "_open_queue", wait)
    taking = asyncio.create_task(source.take(1, LIMIT_S))
    await asked.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
