"""Prepares a store on a server for gateways that are to share it, before the first of them starts."""

from dataclasses import dataclass
from pathlib import Path

from gateway.domain.store_address import StoreAddress
from gateway.storage.errors import StateUnwritable
from gateway.storage.identity import IdentityStore
from gateway.storage.postgres import PostgresDatabase, inspect_server
from gateway.storage.schema import SCHEMA_VERSION
from gateway.storage.store import give_to_owner, make_directory
from gateway.storage.wrapped_keys import CLUSTER_KEY_NAME, WrappedGatewayKeys, key_id, load_cluster_key


@dataclass(frozen=True, slots=True)
class PreparedStore:
    """What is there now. The members that begin with ``made`` say what was not there before."""

    cluster_key: Path
    cluster_key_id: str
    """As the store names the key; not secret."""
    gateway_id: str
    made_tables: bool
    made_cluster_key: bool
    made_gateway_key: bool


def init_store(state_dir: Path, address: StoreAddress) -> PreparedStore:
    """Make the tables, the cluster key and the gateway's key, each where it is missing.

    The cluster key is the file that ``address`` names, whose directory must exist, or ``cluster.key`` in
    ``state_dir``. One that is there is used, never written. Several may do so at once: the gateway's key, and
    a cluster key for it, are made under the database's write lock. Raises StateError, before anything is made
    where that can be known.
    """
    path = address.cluster_key or state_dir / CLUSTER_KEY_NAME
    if address.cluster_key is None:
        make_directory(state_dir)
    elif not path.parent.is_dir():
        raise StateUnwritable(f"cannot make the cluster key {path}: there is no directory {path.parent}")
    made_cluster_key = not path.exists()
    if not made_cluster_key:
        load_cluster_key(path)
    before = inspect_server(address).version
    database = PostgresDatabase(address)
    try:
        identity = IdentityStore(database, WrappedGatewayKeys(path, may_make=True), at_once=False)
        made_gateway_key = not identity.is_made()
        gateway_id = identity.keys.current.id
    finally:
        database.close()
    if address.cluster_key is None:
        give_to_owner(state_dir)
    return PreparedStore(
        path,
        key_id(load_cluster_key(path)),
        gateway_id,
        before < SCHEMA_VERSION,
        made_cluster_key,
        made_gateway_key,
    )
