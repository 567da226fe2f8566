"""A store that is made before its gateways: every part once, and nothing where something does not fit."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store, schema
from gateway.storage.administration import init_store
from gateway.storage.errors import IdentityUnusable, StateTooNew, StateUnreachable, StateUnwritable
from gateway.storage.migrations import MIN_READER_FACT, VERSION_FACT
from gateway.storage.postgres import PostgresDatabase, inspect_server
from gateway.storage.wrapped_keys import key_id, load_cluster_key


@pytest.fixture
def address(tmp_path: Path, postgres_address: StoreAddress) -> StoreAddress:
    """With a cluster key that is not there yet."""
    return StoreAddress(postgres_address.url, tmp_path / "cluster.key")


def test_gateways_start_with_the_cluster_key_and_are_one(tmp_path: Path, address: StoreAddress) -> None:
    made = init_store(tmp_path / "none", address)
    assert made.cluster_key == address.cluster_key
    assert (made.made_tables, made.made_cluster_key, made.made_gateway_key) == (True, True, True)
    assert stat.S_IMODE(made.cluster_key.stat().st_mode) == 0o600
    assert made.cluster_key_id == key_id(load_cluster_key(made.cluster_key))
    assert not (tmp_path / "none").exists()
    with (
        Store.open(tmp_path / "a", address=address, serve=True) as first,
        Store.open(tmp_path / "b", address=address, serve=True) as second,
    ):
        assert {first.gateway_identity.id, second.gateway_identity.id} == {made.gateway_id}


def test_what_is_there_is_used_and_stays_as_it_is(tmp_path: Path, address: StoreAddress) -> None:
    first = init_store(tmp_path, address)
    text = first.cluster_key.read_bytes()
    again = init_store(tmp_path, address)
    assert (again.made_tables, again.made_cluster_key, again.made_gateway_key) == (False, False, False)
    assert (again.gateway_id, again.cluster_key_id) == (first.gateway_id, first.cluster_key_id)
    assert first.cluster_key.read_bytes() == text


def test_several_at_once_make_one_key(tmp_path: Path, address: StoreAddress) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: init_store(tmp_path, address), range(4)))
    assert len({(each.gateway_id, each.cluster_key_id) for each in found}) == 1


def test_without_a_file_named_the_key_is_in_the_state_directory(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    made = init_store(tmp_path / "state", postgres_address)
    assert made.cluster_key == tmp_path / "state" / "cluster.key"
    with Store.open(tmp_path / "state", address=postgres_address, serve=True) as gateway:
        assert gateway.gateway_identity.id == made.gateway_id


def test_a_store_with_a_key_takes_no_other_cluster_key_and_none_is_made(
    tmp_path: Path, address: StoreAddress
) -> None:
    first = init_store(tmp_path, address)
    elsewhere = StoreAddress(address.url, tmp_path / "elsewhere.key")
    with pytest.raises(IdentityUnusable, match="copy the file from a gateway of this store"):
        init_store(tmp_path, elsewhere)
    assert not (tmp_path / "elsewhere.key").exists()
    first.cluster_key.rename(tmp_path / "kept.key")
    with Store.open(tmp_path / "a", address=StoreAddress(address.url, tmp_path / "kept.key")) as store:
        assert store.gateway_identity.id == first.gateway_id
    (tmp_path / "elsewhere.key").write_text("A" * 43 + "=\n")
    (tmp_path / "elsewhere.key").chmod(0o600)
    with pytest.raises(IdentityUnusable, match=f"was wrapped with {first.cluster_key_id}"):
        init_store(tmp_path, elsewhere)


def test_files_that_cannot_be_the_key_are_refused_before_anything_is_made(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    path = tmp_path / "cluster.key"
    path.write_text("A" * 43 + "=\n")
    path.chmod(0o644)
    with pytest.raises(IdentityUnusable, match="chmod 600"):
        init_store(tmp_path, StoreAddress(postgres_address.url, path))
    with pytest.raises(StateUnwritable, match=f"there is no directory {tmp_path / 'deep'}"):
        init_store(tmp_path, StoreAddress(postgres_address.url, tmp_path / "deep" / "cluster.key"))
    assert inspect_server(postgres_address).version == 0


def test_a_server_that_is_away_leaves_no_key_behind(tmp_path: Path) -> None:
    away = StoreAddress("postgresql://u@127.0.0.1:1/d", tmp_path / "cluster.key")
    with pytest.raises(StateUnreachable, match="cannot reach"):
        init_store(tmp_path, away)
    assert list(tmp_path.iterdir()) == []


def test_tables_of_a_later_version_are_refused(tmp_path: Path, address: StoreAddress) -> None:
    database = PostgresDatabase(address)
    with database.write() as connection:
        for name in (VERSION_FACT, MIN_READER_FACT):
            connection.execute(database.upsert(schema.facts), {"name": name, "value": "9999"})
    database.close()
    with pytest.raises(StateTooNew):
        init_store(tmp_path, address)
    assert not (tmp_path / "cluster.key").exists()
