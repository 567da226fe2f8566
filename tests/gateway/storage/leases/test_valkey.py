"""A Valkey or Redis server that forgets its scripts, stops, dies, or is none."""

import asyncio
import socket
import sys
import uuid
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.storage.leases.rules import EngineAway, EngineForgot, EngineUnusable, LeaseStatement
from gateway.storage.leases.valkey import ValkeyLeaseEngine, place_of
from tests.support.redis_server import own_redis_server, redis_server


def said(sequence: int = 1, need: float = 1.0, key: str = "k") -> LeaseStatement:
    return LeaseStatement(key, 10.0, 60.0, 5.0, sequence, need=need, least=need)


async def test_a_server_that_forgot_its_scripts_is_given_the_script_again(tmp_path: Path) -> None:
    with own_redis_server(tmp_path) as server:
        engine = ValkeyLeaseEngine(server.url)
        client = Redis.from_url(server.url)
        try:
            for sequence in (1, 2):
                await client.script_flush()
                (grant,) = await engine.exchange("p", [said(sequence)])
                assert grant.granted == 1.0
        finally:
            await engine.close()
            await client.aclose()


async def test_who_was_heard_before_the_server_was_emptied_is_told_once(tmp_path: Path) -> None:
    with own_redis_server(tmp_path) as server:
        engines = [ValkeyLeaseEngine(server.url) for _ in range(3)]
        client = Redis.from_url(server.url)
        try:
            for name, engine in zip("ab", engines, strict=False):
                await engine.exchange(name, [said()])
            await client.flushall()
            for name, engine in zip("ab", engines, strict=False):
                with pytest.raises(EngineForgot):
                    await engine.exchange(name, [] if name == "a" else [said(2)])
                await engine.exchange(name, [said(3)])
            (grant,) = await engines[2].exchange("c", [said()])
            assert grant.used == 3.0, "a new one has nothing that was forgotten"
        finally:
            for engine in engines:
                await engine.close()
            await client.aclose()


async def test_every_key_ends_by_itself(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (url, prefix):
        engine, client = ValkeyLeaseEngine(url, prefix), Redis.from_url(url)
        try:
            budget = LeaseStatement("b", 10.0, 0.0, 5.0, 1, need=1.0, seed=0.0, lasts_s=1000.0)
            await engine.exchange("p", [said(), budget])
            assert 60_000 < await client.pttl(f"{prefix}{{k}}") <= 70_000
            assert 900_000 < await client.pttl(f"{prefix}{{b}}") <= 1_000_000
        finally:
            await engine.close()
            await client.aclose()


async def test_an_answer_that_comes_late_is_taken_for_no_other(tmp_path: Path) -> None:
    with own_redis_server(tmp_path) as server:
        engine = ValkeyLeaseEngine(server.url)
        try:
            await engine.exchange("p", [said(1, 1.0, "other")])
            server.pause()
            with pytest.raises(EngineAway):
                await engine.exchange("p", [said(2, 7.0)])
            server.go_on()
            (grant,) = await engine.exchange("p", [said(3, 2.0, uuid.uuid4().hex)])
            assert (grant.granted, grant.used) == (2.0, 2.0)
        finally:
            server.go_on()
            await engine.close()


async def test_a_server_that_died_is_away_until_it_is_back(tmp_path: Path) -> None:
    with own_redis_server(tmp_path) as server:
        engine = ValkeyLeaseEngine(server.url)
        try:
            await engine.exchange("p", [said(1)])
            server.kill()
            for _ in range(2):
                with pytest.raises(EngineAway):
                    await engine.exchange("p", [])
            server.start()
            with pytest.raises(EngineForgot):
                await engine.exchange("p", [])
            assert (await engine.exchange("p", [said(2)]))[0].used == 1.0
        finally:
            await engine.close()


async def test_a_connection_that_the_event_loop_calls_closed_is_away_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_redis_server(tmp_path) as server:
        engine = ValkeyLeaseEngine(server.url)
        try:
            await engine.exchange("p", [said(1)])
            (connection,) = engine._client.connection_pool._available_connections
            with monkeypatch.context() as patch:
                patch.setattr(connection._writer, "writelines", _closed)
                with pytest.raises(EngineAway, match="the handler is closed"):
                    await engine.exchange("p", [said(2)])
            assert (await engine.exchange("p", [said(3)]))[0].used == 1.0
        finally:
            await engine.close()


def _closed(_data: object) -> None:
    """As uvloop does."""
    raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")


async def test_a_server_that_never_answers_is_away_after_a_second() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    engine = ValkeyLeaseEngine(f"redis://127.0.0.1:{port}")
    try:
        async with asyncio.timeout(60):
            with pytest.raises(EngineAway):
                await engine.exchange("p", [said()])
    finally:
        await engine.close()
        server.close()


def test_no_password_is_shown() -> None:
    assert place_of("redis://user:secret@host:6380/2") == "redis://host:6380/2"


def test_a_url_that_is_none_is_refused_without_its_password() -> None:
    with pytest.raises(EngineUnusable) as refused:
        ValkeyLeaseEngine("redis://:secret@host:no/0")
    assert "secret" not in str(refused.value)
    with pytest.raises(EngineUnusable, match="IPv6") as refused:
        ValkeyLeaseEngine("redis://:secret@[/0?client_name=a")
    assert "secret" not in str(refused.value)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(EngineUnusable, match=r"pip install 'trunkline\[redis\]'"):
        ValkeyLeaseEngine("redis://127.0.0.1")
