"""What a PostgreSQL server's address may say beside host and database."""

import psycopg
import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage.leases.rules import EngineAway, LeaseStatement
from gateway.storage.leases.sql import SqlLeaseEngine
from tests.support.postgres import PostgresServer


async def exchange(url: str) -> float:
    """What is granted of a new limit to the first who asks."""
    engine = SqlLeaseEngine(url)
    try:
        (grant,) = await engine.exchange("p", [LeaseStatement("k", 10.0, 60.0, 5.0, 1, need=1.0, least=1.0)])
    finally:
        await engine.close()
    return grant.granted


async def test_the_schema_of_the_address_is_used(
    postgres_address: StoreAddress, postgres_server: PostgresServer
) -> None:
    assert await exchange(postgres_address.url) == 1.0
    name = postgres_address.url.rpartition("%3D")[2]
    with psycopg.connect(postgres_server.database_url(), autocommit=True) as connection:
        assert connection.execute(f'SELECT count(*) FROM "{name}".shared_limits').fetchone() == (1,)


async def test_of_several_hosts_the_one_that_takes_writes_is_used(postgres_address: StoreAddress) -> None:
    before, _, after = postgres_address.url.partition("@")
    several = f"{before}@127.0.0.1:1,{after}&target_session_attrs=read-write"
    assert await exchange(several) == 1.0
    assert "127.0.0.1" in SqlLeaseEngine(several).name


async def test_a_table_that_is_lost_is_made_again(postgres_address: StoreAddress) -> None:
    engine = SqlLeaseEngine(postgres_address.url)
    statements = [LeaseStatement("k", 10.0, 60.0, 5.0, sequence, need=1.0) for sequence in (1, 2, 3)]
    try:
        assert (await engine.exchange("p", statements[:1]))[0].granted == 1.0
        with psycopg.connect(postgres_address.url, autocommit=True) as connection:
            connection.execute("DROP TABLE shared_limits")
        with pytest.raises(EngineAway):
            await engine.exchange("p", statements[1:2])
        assert (await engine.exchange("p", statements[2:]))[0].granted == 1.0
    finally:
        await engine.close()
