"""The gateway's key wrapped in the store: gateways share it by the cluster key, and nobody else has it."""

import base64
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store, schema
from gateway.storage.errors import IdentityUnusable, StateUnwritable
from gateway.storage.wrapped_keys import (
    CLUSTER_KEY_NAME,
    FACT_PREFIX,
    WrappedGatewayKeys,
    derive_member_key,
    key_id,
    load_cluster_key,
    load_or_make_cluster_key,
    wrap_key,
)
from shared.identity import GatewayIdentity, generate_key

NOW_S = 1_800_000_000.0


def cluster_key(path: Path, byte: int = 7) -> Path:
    path.write_text(base64.b64encode(bytes([byte]) * 32).decode() + "\n")
    path.chmod(0o600)
    return path


def pinned(store: Store, life_s: float = 60.0) -> bytes:
    """The fingerprint in a new join token."""
    return store.tokens.create(life_s, 1, ["*"], {}, NOW_S)[0].fingerprint


def test_a_wrapped_key_comes_back_with_its_cluster_key_and_shows_nothing(tmp_path: Path) -> None:
    key, path = generate_key(), cluster_key(tmp_path / "w")
    facts = wrap_key(key, load_cluster_key(path))
    identity = GatewayIdentity(key)
    (value,) = facts.values()
    assert base64.b64encode(key.private_bytes_raw()).decode().rstrip("=") not in value
    found = WrappedGatewayKeys(path, may_make=False).found(facts)
    assert [each.public_key for each in found.values()] == [identity.public_key]
    assert list(found) == [identity.fingerprint.hex()]


def test_another_cluster_key_is_named_as_such(tmp_path: Path) -> None:
    facts = wrap_key(generate_key(), bytes([7]) * 32)
    other = WrappedGatewayKeys(cluster_key(tmp_path / "other", 8), may_make=False)
    ids = f"{key_id(bytes([8]) * 32)}, and .* was wrapped with {key_id(bytes([7]) * 32)}"
    with pytest.raises(IdentityUnusable, match=ids):
        other.found(facts)


def test_a_key_that_was_changed_or_moved_in_the_store_is_not_taken(tmp_path: Path) -> None:
    wrapping = bytes([7]) * 32
    holder = WrappedGatewayKeys(cluster_key(tmp_path / "w"), may_make=False)
    ((name, value),) = wrap_key(generate_key(), wrapping).items()
    form, wrapped_by, text = value.split(".")
    data = bytearray(base64.b64decode(text))
    data[-1] ^= 1
    changed = f"{form}.{wrapped_by}.{base64.b64encode(bytes(data)).decode()}"
    for facts in ({name: changed}, {name: f"{form}.{wrapped_by}.no"}, {FACT_PREFIX + "ab" * 32: value}):
        with pytest.raises(IdentityUnusable, match="was changed by somebody"):
            holder.found(facts)
    with pytest.raises(IdentityUnusable, match="upgrade Trunkline"):
        holder.found({name: value.replace("v1", "v2", 1)})


def test_a_cluster_key_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "w"
    made = load_or_make_cluster_key(path)
    assert len(made) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_make_cluster_key(path) == made
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StateUnwritable, match=f"there is no directory {tmp_path / 'deep'}"):
        load_or_make_cluster_key(tmp_path / "deep" / "w")


def test_of_several_that_make_a_cluster_key_at_once_one_does(tmp_path: Path) -> None:
    path = tmp_path / "w"
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(load_or_make_cluster_key, [path] * 8))) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "short", base64.b64encode(bytes(31)).decode(), "ä" * 44])
def test_files_that_hold_no_cluster_key_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "w"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(IdentityUnusable, match="32 random bytes"):
        load_cluster_key(path)


def test_a_cluster_key_that_others_may_read_or_that_is_missing_is_refused(tmp_path: Path) -> None:
    path = cluster_key(tmp_path / "w")
    path.chmod(0o644)
    with pytest.raises(IdentityUnusable, match="chmod 600"):
        load_cluster_key(path)
    with pytest.raises(IdentityUnusable, match="copy the file from a gateway of this store"):
        load_cluster_key(tmp_path / "none")


def test_replicas_with_one_cluster_key_are_one_gateway(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    address = StoreAddress(postgres_address.url, cluster_key=cluster_key(tmp_path / "w"))
    with (
        Store.open(tmp_path / "a", address=address, serve=True) as first,
        Store.open(tmp_path / "b", address=address, serve=True) as second,
    ):
        assert first.gateway_identity.id == second.gateway_identity.id
        before = first.gateway_identity
        keys = first.identity.rotate(60.0, NOW_S)
        assert second.identity.keys.current.id == keys.current.id != before.id
        assert second.identity.keys.previous is not None
        assert second.identity.keys.previous.id == before.id
        assert second.identity.forget_previous(NOW_S + 61)
        assert first.identity.keys.previous is None
        with first._database.read() as connection:
            rows = connection.execute(
                schema.facts.select().where(schema.facts.c.name.startswith(FACT_PREFIX))
            )
            assert [row.name for row in rows] == [FACT_PREFIX + keys.current.fingerprint.hex()]
    assert not list(tmp_path.rglob("*.key"))


def test_without_a_file_given_the_first_gateway_makes_one_and_others_are_told_to_copy_it(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    with Store.open(tmp_path / "a", address=postgres_address, serve=True) as first:
        with pytest.raises(IdentityUnusable, match="copy the file from a gateway of this store"):
            Store.open(tmp_path / "b", address=postgres_address, serve=True)
        made = (tmp_path / "a" / CLUSTER_KEY_NAME).read_bytes()
        (tmp_path / "b" / CLUSTER_KEY_NAME).write_bytes(made)
        (tmp_path / "b" / CLUSTER_KEY_NAME).chmod(0o600)
        with Store.open(tmp_path / "b", address=postgres_address, serve=True) as second:
            assert second.gateway_identity.id == first.gateway_identity.id


def test_a_cluster_key_that_was_given_is_not_made_by_a_gateway(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    address = StoreAddress(postgres_address.url, cluster_key=tmp_path / "none")
    with pytest.raises(IdentityUnusable, match="trunkline store init"):
        Store.open(tmp_path / "a", address=address, serve=True)
    assert not (tmp_path / "none").exists()


def test_commands_that_use_no_private_key_need_no_cluster_key_and_make_no_directory(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    with (
        Store.open(tmp_path / "a", address=postgres_address, serve=True) as gateway,
        Store.open(tmp_path / "laptop", address=postgres_address, create=False) as store,
    ):
        store.keys.create("k", "t", 1.0)
        assert pinned(store) == gateway.gateway_identity.fingerprint
        with pytest.raises(IdentityUnusable):
            _ = store.gateway_identity
        before = gateway.gateway_identity
        after = gateway.identity.rotate(3600.0, NOW_S).current
        assert pinned(store) == before.fingerprint
        assert pinned(store, 4000.0) == after.fingerprint
    assert not (tmp_path / "laptop").exists()


def test_a_command_makes_no_gateway_key_for_a_store_that_has_none(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    with Store.open(tmp_path / "laptop", address=postgres_address) as store:
        store.keys.create("k", "t", 1.0)
        with pytest.raises(IdentityUnusable, match=r"no gateway's key yet.*trunkline store init"):
            pinned(store)
    assert not (tmp_path / "laptop").exists()


def test_a_store_whose_wrapped_key_is_gone_says_so(tmp_path: Path, postgres_address: StoreAddress) -> None:
    Store.open(tmp_path, address=postgres_address, serve=True).close()
    with Store.open(tmp_path, address=postgres_address) as store:
        with store._database.write() as connection:
            connection.execute(schema.facts.delete().where(schema.facts.c.name.startswith(FACT_PREFIX)))
        with pytest.raises(IdentityUnusable, match="does not hold the gateway's key"):
            _ = store.gateway_identity


def test_gateways_with_one_cluster_key_know_each_other_by_a_key_that_does_not_give_it_away(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    shared = replace(postgres_address, cluster_key=cluster_key(tmp_path / "w"))
    with Store.open(tmp_path / "a", serve=True, address=shared) as a:
        with Store.open(tmp_path / "b", serve=True, address=shared) as b:
            assert a.member_key == b.member_key == derive_member_key(bytes([7]) * 32)
            assert a.audit_chain != b.audit_chain
        with Store.open(tmp_path / "c", address=shared) as command:
            assert command.member_key is None
        assert a.member_key is not None
        assert len(a.member_key) == 32
        assert a.member_key != bytes([7]) * 32
        assert derive_member_key(bytes([8]) * 32) != a.member_key
    with Store.open(tmp_path / "files", serve=True) as files:
        assert (files.member_key, files.audit_chain) == (None, "gateway")
